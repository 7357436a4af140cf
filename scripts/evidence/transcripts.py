"""Attempts as a person reads them: turn by turn, trimmed by a rule that the page states.

A night of a thousand tasks has more text than a page can hold, so long texts lose their middle,
turns that repeat are told once, and only some of the flipped tasks are shown. The records of a
trajectory are not altered in any other way, and no HTML is written here.
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
"""A reply, a command or an output longer than this loses its middle."""

TOKENS_A_TURN = 128
"""Token ids shown of one turn."""

MOST = {Change.LOST: 24, Change.WON: 24, Change.ENDING: 4}
"""Tasks shown of each kind; the rest are named."""

BUDGET_BYTES = 2_500_000
"""Bytes of HTML that all transcripts may take together: half of what a page may weigh."""

SURPRISING = -0.6931
"""ln ½: a sampled token below it was less likely than not, and is set in bold."""

RULE = (
    f"At most {MOST[Change.LOST]} tasks that were lost, {MOST[Change.WON]} that were won and"
    f" {MOST[Change.ENDING]} that ended differently are shown, as long as they fit into"
    f" {BUDGET_BYTES / 1e6:g} MB. A text of more than {TEXT_CHARS} characters loses its middle, a"
    f" turn has at most {TOKENS_A_TURN} token ids, and turns that say and see the same are told"
    " once."
)


@dataclass(frozen=True)
class Token:
    """One sampled token: its id, its logprob as text, and whether it was unlikely."""

    id: int
    logprob: str
    surprising: bool


@dataclass(frozen=True)
class TurnView:
    """One turn, or several that are the same but for their seeds."""

    label: str
    repeated: int
    reply: str
    """Empty where the reply is the command's block and nothing else."""
    command: str
    output: str | None
    exit_code: int | None
    done: bool
    cut: bool
    """The reply reached the token limit."""
    n_tokens: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class AttemptView:
    """One arm's attempt: its record, and its turns as they are shown."""

    arm: str
    record: Trajectory
    turns: tuple[TurnView, ...]


@dataclass(frozen=True)
class AssertionView:
    """One assertion, ticked for both attempts."""

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
    """The tasks to show, at most `MOST` of each kind, in the order of `flips`."""
    for change, most in MOST.items():
        for flip in flips.of(change)[:most]:
            yield flip_view(flip, flips.before, flips.after)


def flip_view(flip: Flip, before: str, after: str) -> FlipView:
    """One task with both attempts, trimmed and made visible."""
    return FlipView(
        task_id=visible(flip.task.task_id),
        change=flip.change.value.lower(),
        prompt=_text(flip.task.prompt),
        tags=tuple(_text(value) for value in tags_of(flip.task).values()),
        assertions=_assertions(flip),
        before=attempt_view(flip.before, before),
        after=attempt_view(flip.after, after),
    )


def attempt_view(trajectory: Trajectory, arm: str) -> AttemptView:
    """One attempt; turns that repeat are folded."""
    return AttemptView(arm, trajectory, turn_views(trajectory))


def turn_views(trajectory: Trajectory) -> tuple[TurnView, ...]:
    """An episode's turns, those that repeat folded into one."""

    def said_and_seen(numbered: tuple[int, Turn]) -> tuple[str, str | None, int | None]:
        turn = numbered[1]
        return turn.text, turn.observation, turn.exit_code

    runs = [[*run] for _, run in itertools.groupby(enumerate(trajectory.turns), said_and_seen)]
    return tuple(_turn_view(run[0][0], [turn for _, turn in run]) for run in runs)


def _turn_view(first: int, run: Sequence[Turn]) -> TurnView:
    turn, n = run[0], len(run)
    label = f"turn {first + 1}" if n == 1 else f"turns {first + 1}–{first + n}"
    command = turn.action.command if turn.action.kind is not ActionKind.NONE else ""
    return TurnView(
        label=label,
        repeated=n,
        reply="" if _only_the_block(turn.text, command) else _text(turn.text),
        command=_text(command),
        output=None if turn.observation is None else _text(turn.observation),
        exit_code=turn.exit_code,
        done=turn.action.kind is ActionKind.DONE,
        cut=turn.finish_reason == "length",
        n_tokens=len(turn.completion_ids),
        tokens=_tokens(turn),
    )


def _only_the_block(reply: str, command: str) -> bool:
    return bool(command) and reply.strip() == f"```bash\n{command.strip()}\n```"


def _tokens(turn: Turn) -> tuple[Token, ...]:
    pairs = zip(turn.completion_ids, turn.logprobs, strict=True)
    return tuple(
        Token(i, f"{logprob:.2f}".replace("-", "−"), logprob < SURPRISING)
        for i, logprob in [*pairs][:TOKENS_A_TURN]
    )


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
    """What a task's record says of an assertion besides kind and path."""
    if not isinstance(spec, Mapping):
        return ""
    rest = {k: v for k, v in spec.items() if k not in ("kind", "path")}
    return ", ".join(
        " · ".join(map(str, v)) if isinstance(v, list) else str(v) for v in rest.values()
    )


def _text(text: str) -> str:
    return visible(shortened(text, TEXT_CHARS))
