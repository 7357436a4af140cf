"""Attempts in readable form: turn by turn, trimmed by a rule that the page states.

A thousand tasks have more text than a page can hold. So long texts lose their middle, repeated
turns are shown once, and only some of the flipped tasks are shown. Nothing else is altered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldkit.eval.grade import AssertionResult
from fieldkit.records import ActionKind, Trajectory, Turn
from scripts.evidence.collect import tags_of
from scripts.evidence.flips import Change, Flip, Flips
from scripts.words.visible import shortened, visible

TEXT_CHARS = 1000
"""Longer replies, commands and outputs lose their middle."""

MOST = {Change.LOST: 24, Change.WON: 24, Change.ENDING: 4}
"""Tasks shown of each kind; of the others only the ids."""

BUDGET_BYTES = 2_500_000
"""Most bytes of HTML for all transcripts together: half the limit of the page."""

RULE = (
    f"At most {MOST[Change.LOST]} tasks that were lost, {MOST[Change.WON]} that were won and"
    f" {MOST[Change.ENDING]} that ended differently are shown, as long as they fit into"
    f" {BUDGET_BYTES / 1e6:g} MB. A text of more than {TEXT_CHARS} characters loses its"
    " middle, and turns that say and see the same are told once."
)


@dataclass(frozen=True)
class TurnView:
    """One turn, or consecutive turns that say and see the same.

    numbers: the indices of the turns in the trajectory, from 0.
    """

    numbers: range
    reply: str
    """Empty if the reply is only the command's code block."""
    command: str
    output: str | None
    exit_code: int | None
    done: bool
    cut: bool
    """The reply reached the token limit."""
    n_tokens: int

    @property
    def repeated(self) -> int:
        """How many turns this view stands for."""
        return len(self.numbers)

    @property
    def label(self) -> str:
        """The turns by their numbers from 1."""
        first, last = self.numbers[0] + 1, self.numbers[-1] + 1
        return f"turn {first}" if first == last else f"turns {first}–{last}"


@dataclass(frozen=True)
class AttemptView:
    """One arm's attempt: its record and its displayed turns."""

    arm: str
    record: Trajectory
    turns: tuple[TurnView, ...]


@dataclass(frozen=True)
class AssertionView:
    """One assertion, with its result in both attempts."""

    kind: str
    path: str
    wanted: str
    before: bool
    after: bool
    why: str


@dataclass(frozen=True)
class FlipView:
    """One flipped task, ready for the template."""

    task_id: str
    change: str
    prompt: str
    tags: tuple[str, ...]
    assertions: tuple[AssertionView, ...]
    before: AttemptView
    after: AttemptView


def views(flips: Flips) -> Iterable[FlipView]:
    """Yield the tasks to show, at most `MOST` of each kind, in the order of `flips`."""
    for change, most in MOST.items():
        for flip in flips.of(change)[:most]:
            yield flip_view(flip, flips.before, flips.after)


def flip_view(flip: Flip, before: str, after: str) -> FlipView:
    """One task with both attempts, trimmed and safe to show."""
    return FlipView(
        task_id=visible(flip.task.task_id),
        change=flip.change.value.lower(),
        prompt=_text(flip.task.prompt),
        tags=tuple(_text(value) for value in tags_of(flip.task).values()),
        assertions=_assertions(flip),
        before=AttemptView(before, flip.before, turn_views(flip.before)),
        after=AttemptView(after, flip.after, turn_views(flip.after)),
    )


def turn_views(trajectory: Trajectory) -> tuple[TurnView, ...]:
    """The turns of a trajectory, with repeated turns folded into one."""

    def said_and_seen(numbered: tuple[int, Turn]) -> tuple[str, str | None, int | None]:
        turn = numbered[1]
        return turn.text, turn.observation, turn.exit_code

    runs = [[*run] for _, run in itertools.groupby(enumerate(trajectory.turns), said_and_seen)]
    return tuple(_turn_view(range(run[0][0], run[-1][0] + 1), run[0][1]) for run in runs)


def _turn_view(numbers: range, turn: Turn) -> TurnView:
    command = turn.action.command if turn.action.kind is not ActionKind.NONE else ""
    return TurnView(
        numbers=numbers,
        reply="" if _only_the_block(turn.text, command) else _text(turn.text),
        command=_text(command),
        output=None if turn.observation is None else _text(turn.observation),
        exit_code=turn.exit_code,
        done=turn.action.kind is ActionKind.DONE,
        cut=turn.finish_reason == "length",
        n_tokens=len(turn.completion_ids),
    )


def _only_the_block(reply: str, command: str) -> bool:
    return bool(command) and reply.strip() == f"```bash\n{command.strip()}\n```"


def _assertions(flip: Flip) -> tuple[AssertionView, ...]:
    wanted = flip.task.info.get("verifiable_assertions")
    specs: Sequence[Any] = wanted if isinstance(wanted, list) else []
    pairs = zip(flip.before.grade.results, flip.after.grade.results, strict=True)
    return tuple(
        _assertion(b, a, specs[i] if i < len(specs) else None) for i, (b, a) in enumerate(pairs)
    )


def _assertion(before: AssertionResult, after: AssertionResult, spec: Any) -> AssertionView:
    return AssertionView(
        kind=_text(before.kind),
        path=_text(before.path),
        wanted=_text(wanted_words(spec)),
        before=before.passed,
        after=after.passed,
        why=_text(after.detail or before.detail),
    )


def wanted_words(spec: Any) -> str:
    """The fields of an assertion besides kind and path, as text."""
    if not isinstance(spec, Mapping):
        return ""
    rest = {k: v for k, v in spec.items() if k not in ("kind", "path")}
    return ", ".join(
        " · ".join(map(str, v)) if isinstance(v, list) else str(v) for v in rest.values()
    )


def _text(text: str) -> str:
    return visible(shortened(text, TEXT_CHARS))
