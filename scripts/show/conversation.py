"""Renders attempts at one task for the terminal, turn by turn.

Texts are shortened, folded and made safe exactly as on report.html; the terminal adds each turn's
progress, advantage and tokens. Attempts stand side by side if there is room.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from fieldkit.eval.grade import AssertionResult
from fieldkit.records import ActionKind, Task, Trajectory, Turn, segments
from rollout.envs.registry import opening_of
from scripts.evidence.collect import tags_of
from scripts.evidence.transcripts import TEXT_CHARS, TurnView, turn_views, wanted_words
from scripts.show.attempts import Played
from scripts.show.tokens import Vocabulary, given, legend, sampled
from scripts.words import quantities
from scripts.words.visible import shortened, visible

COLUMN = 60
"""Characters per attempt: two attempts stand side by side from 120 characters, three from 180."""


@dataclass(frozen=True)
class Exhibit:
    """One attempt to show, and the name of its player."""

    name: str
    played: Played
    sampled: bool = True
    """A model sampled its tokens, so they have probabilities to show."""

    @property
    def trajectory(self) -> Trajectory:
        return self.played.trajectory


def conversation(
    task: Task,
    exhibits: Sequence[Exhibit],
    *,
    width: int,
    vocabulary: Vocabulary | None,
    tokens: bool = False,
) -> Group:
    """The whole page: the task, every attempt, and the results of the assertions.

    width: of the terminal, in characters. vocabulary: decodes token ids; without it the opening
    prompt is shown from the task's text, and `tokens` must be false.
    """
    shown = vocabulary if tokens else None
    parts = [_heading(task), _opening(task, exhibits[0].trajectory, vocabulary), Text()]
    if len(exhibits) > 1 and width >= COLUMN * len(exhibits):
        parts.append(_side_by_side(exhibits, shown))
    else:
        parts += [_attempt(e, shown) for e in exhibits]
    parts.append(ticked(task, exhibits))
    if tokens:
        parts += [Text(), legend(exhibits[0].trajectory.sampling.temperature)]
    return Group(*parts)


# --- before the first turn ------------------------------------------------------------------------


def _heading(task: Task) -> Text:
    tags = "".join(f" · {visible(value)}" for value in tags_of(task).values())
    return Text.assemble((visible(task.task_id), "bold"), (tags, "dim"))


def _opening(task: Task, trajectory: Trajectory, vocabulary: Vocabulary | None) -> RenderableType:
    """The first prompt: decoded from its token ids if there are any, else from the task's text."""
    ids = trajectory.turns[0].prompt_ids if trajectory.turns else ()
    if ids and vocabulary is not None:
        text = vocabulary.styled(ids)
        text.rstrip()
    else:
        told = "\n".join(m["content"] for m in opening_of(task).messages)
        text = Text(visible(shortened(told, TEXT_CHARS)))
    return Group(Text("prompt", "dim"), _indented(text))


# --- the attempts ---------------------------------------------------------------------------------


def _side_by_side(exhibits: Sequence[Exhibit], shown: Vocabulary | None) -> Table:
    """One column per attempt. Turns are not aligned: after the first, the worlds differ."""
    grid = Table.grid(padding=(0, 2), expand=True)
    for _ in exhibits:
        grid.add_column(ratio=1, overflow="fold")
    grid.add_row(*[_attempt(e, shown) for e in exhibits])
    return grid


def _attempt(exhibit: Exhibit, shown: Vocabulary | None) -> Group:
    return Group(_name_and_end(exhibit), *_told(exhibit, shown))


def _name_and_end(exhibit: Exhibit) -> Group:
    """The name of the player, and how the attempt ended."""
    t = exhibit.trajectory
    figures = [
        t.stop_reason.value,
        quantities.counted(len(t.turns), "turn"),
        f"reward {quantities.plain(t.reward, 2)}",
    ]
    if exhibit.played.group is not None and exhibit.played.advantage is not None:
        figures.append(f"advantage {quantities.signed(exhibit.played.advantage, 2)}")
        figures.append(exhibit.played.group.signal.value)
    passed = f"{'passed' if t.grade.passed else 'not passed'} {t.grade.n_passed}/{t.grade.n_total}"
    end = Text.assemble((passed, _style_of(t.grade.passed)), *[f" · {f}" for f in figures])
    return Group(Rule(Text(exhibit.name, "bold"), align="left", style="dim"), end, Text())


def _told(exhibit: Exhibit, shown: Vocabulary | None) -> Iterator[Group]:
    """Yield the turns, with an empty line after each.

    A prompt adds only the output of the turn before it, so that output is shown once. A line marks
    turns for which the conversation was rendered anew.
    """
    anew = _rendered_anew(exhibit.trajectory.turns)
    vocabulary = shown if exhibit.sampled else None
    for view in turn_views(exhibit.trajectory):
        parts: list[RenderableType] = [_figures(exhibit.played, view)]
        for number in sorted(anew & {*view.numbers}):
            said = f"the conversation was rendered anew for turn {number + 1}: a new segment"
            parts.append(Text(said, "yellow"))
        parts += [_indented(line) for line in _exchange(exhibit.trajectory, view)]
        if vocabulary is not None:
            parts += _tokens(exhibit.trajectory.turns, view, vocabulary)
        yield Group(*parts, Text())


def _rendered_anew(turns: tuple[Turn, ...]) -> set[int]:
    """The indices of the turns whose prompt does not extend the tokens before it."""
    starts = itertools.accumulate(len(segment) for segment in segments(turns))
    return {*starts} - {len(turns)}


def _figures(played: Played, view: TurnView) -> Text:
    """The turn's label and figures in one line."""
    turns = played.trajectory.turns
    n = view.repeated
    figures = [] if n == 1 else [f"{n} times the same"]
    if view.n_tokens:
        figures.append(f"{view.n_tokens} tokens")
    if view.exit_code is not None:
        figures.append(f"exit {view.exit_code}")
    progress = [turns[i].reward for i in view.numbers]
    figures += _series("progress", [p for p in progress if p is not None])
    if played.turn_advantages is not None:
        figures += _series("advantage", [played.turn_advantages[i] for i in view.numbers])
    rest = "".join(f" · {figure}" for figure in figures)
    return Text.assemble((view.label, "bold"), (rest, "dim"))


def _series(name: str, values: Sequence[float]) -> list[str]:
    """The values as text: once if all are equal; empty if there are none."""
    words = [quantities.signed(value, 2) for value in values]
    if not words:
        return []
    return [f"{name} {words[0] if len(set(words)) == 1 else ' '.join(words)}"]


def _exchange(trajectory: Trajectory, view: TurnView) -> Iterator[Text]:
    """Yield the model's reply, the action found in it, and the output."""
    if view.reply:
        yield Text(view.reply, "italic")
    if view.command:
        yield Text.assemble(("$ ", "dim"), (view.command.replace("\n", "\n  "), "bold"))
    if view.done:
        yield Text("says that it is done", "green")
    elif trajectory.turns[view.numbers[0]].action.kind is ActionKind.NONE:
        yield Text("no command was found in this reply", "yellow")
    if view.cut:
        yield Text("the reply was cut at its token limit", "yellow")
    if view.output is not None:
        yield Text(view.output, "red" if view.exit_code else "")
        if view.numbers[-1] == len(trajectory.turns) - 1:
            unread = "this" if view.repeated == 1 else "the last of these"
            yield Text(f"the episode ended here: the model has not read {unread}", "dim")


# --- tokens ---------------------------------------------------------------------------------------


def _tokens(
    turns: Sequence[Turn], view: TurnView, vocabulary: Vocabulary
) -> Iterator[RenderableType]:
    """Yield the new tokens of each prompt, and the sampled tokens."""
    for number in view.numbers:
        turn = turns[number]
        if not turn.completion_ids:
            continue
        fresh = fresh_ids(turns, number)
        known = len(turn.prompt_ids) - len(fresh)
        head = f"turn {number + 1}: {len(fresh)} new prompt tokens after {known}"
        yield _indented(Text(head, "dim"))
        yield _indented(given(fresh, vocabulary))
        yield _indented(Text(f"{len(turn.completion_ids)} sampled tokens", "dim"))
        yield _indented(sampled(turn.completion_ids, turn.logprobs, vocabulary))


def fresh_ids(turns: Sequence[Turn], number: int) -> tuple[int, ...]:
    """The ids of a turn's prompt after the previous turn's prompt and reply.

    All ids of the prompt if the conversation was rendered anew.
    """
    prompt = turns[number].prompt_ids
    if number == 0:
        return prompt
    before = turns[number - 1].prompt_ids + turns[number - 1].completion_ids
    return prompt[len(before) :] if prompt[: len(before)] == before else prompt


# --- the end --------------------------------------------------------------------------------------


def ticked(task: Task, exhibits: Sequence[Exhibit]) -> Group:
    """Every assertion with a tick or a cross for each attempt, and the reason of a failure.

    All grades are of one task, so they have the same assertions.
    """
    names = [e.name for e in exhibits]
    heading = Text("assertions", "dim")
    if len(names) > 1:
        heading.append(f", from left to right: {'; '.join(names)}")
    by_assertion = [*zip(*[e.trajectory.grade.results for e in exhibits], strict=True)]
    specs = task.info.get("verifiable_assertions", [])
    if len(specs) != len(by_assertion):  # the task has changed since it was played
        specs = [None] * len(by_assertion)
    rows = [
        _assertion(dict(zip(names, verdicts, strict=True)), wanted_words(spec))
        for verdicts, spec in zip(by_assertion, specs, strict=True)
    ]
    return Group(heading, *rows)


def _assertion(verdicts: Mapping[str, AssertionResult], wanted: str) -> Group:
    """One assertion: its line, its expected values, and the reason of each failure."""
    first = next(iter(verdicts.values()))
    line = Text()
    for verdict in verdicts.values():
        line.append("✓ " if verdict.passed else "✗ ", _style_of(verdict.passed))
    line.append(f"{visible(first.kind)} {visible(first.path)}")
    below = [wanted] if wanted else []
    for name, verdict in verdicts.items():
        if not verdict.passed and verdict.detail:
            below.append(f"{name}: {verdict.detail}" if len(verdicts) > 1 else verdict.detail)
    details = [Text(visible(shortened(words, TEXT_CHARS)), "dim") for words in below]
    return Group(line, *[Padding(d, (0, 0, 0, 2 * len(verdicts)), expand=False) for d in details])


def _style_of(passed: bool) -> str:
    return "green" if passed else "red"


def _indented(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, 2), expand=False)
