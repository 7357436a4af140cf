"""The three parts of the SQL agent's reward, and the published kind for comparison.

correctness: 1 where the answer is right, else 0. progress: how far the queries came, from 0 to 1.
operational: the sum of a small signal for each step. Each is a reward function as TRL calls them,
`(environments, **columns) -> list[float]`, over environments that keep a `Record`.

A progress reward for results that merely resemble the answer pays a policy that draws queries at
random, and one that never answers (docs/environments-sql.md has the numbers). So here progress is
paid only to an episode that answers, and only for two things that chance seldom gives: a query that
reads just the columns that the gold query reads, and a result that is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout.envs.sql.locked_db import Result
from rollout.envs.sql.sql_answers import (
    bare_text,
    closeness,
    elements_of,
    gives,
    is_right,
    looks_like,
)

STEP, FAILED, REPEATED = -0.005, -0.01, -0.01
"""Every step; one that the database or the environment refused; one that was taken before."""
WELL_FORMED, SEEN = 0.02, 0.01
"""An answer in the form that the question asks for; one whose every element a query had shown."""

READS_THE_COLUMNS, GIVES_THE_ANSWER = 0.5, 1.0
"""Progress: of the best query of an episode."""


@dataclass(frozen=True)
class Call:
    """One step of an episode."""

    tool: str
    argument: str
    failed: bool = False
    repeated: bool = False
    result: Result | None = None
    """Of a query."""


@dataclass
class Record:
    """What an episode left: all that its rewards are made of."""

    gold: Any = None
    gold_reads: Callable[[], frozenset[tuple[str, str]]] = frozenset
    """What the gold query reads; asked for when a reward is, as it may take a query."""
    calls: list[Call] = field(default_factory=list)
    given: str | None = None
    """The answer; None where none was given."""

    @property
    def results(self) -> list[Result]:
        """Of the queries that ran."""
        return [c.result for c in self.calls if c.result is not None and not c.result.error]


def correctness_of(record: Record) -> float:
    """1 for the right answer, else 0."""
    return float(record.given is not None and is_right(record.given, record.gold))


def progress_of(record: Record) -> float:
    """0 without an answer; else of the best query so far, so that it can only grow."""
    if record.given is None:
        return 0.0
    return max((_progress_of_query(result, record) for result in record.results), default=0.0)


def _progress_of_query(result: Result, record: Record) -> float:
    if not result.more and gives(result.rows, record.gold):
        return GIVES_THE_ANSWER
    reads = record.gold_reads()
    return READS_THE_COLUMNS if reads and result.read == reads else 0.0


def signal_of(call: Call, record: Record) -> float:
    """One step's part of `operational_of`."""
    earned = STEP + FAILED * call.failed + REPEATED * call.repeated
    if call.tool == "answer" and not call.failed:
        earned += WELL_FORMED * looks_like(call.argument, record.gold)
        earned += SEEN * _was_shown(call.argument, record)
    return earned


def operational_of(record: Record) -> float:
    """The sum over all steps; an episode without steps has 0."""
    return sum(signal_of(call, record) for call in record.calls)


def _was_shown(given: str, record: Record) -> bool:
    shown = [value for result in record.results for row in result.rows for value in row]
    wanted = elements_of(given) if isinstance(record.gold, list) else [given]
    return all(any(_is_shown(element, value) for value in shown) for element in wanted)


def _is_shown(element: str, value: Any) -> bool:
    if isinstance(value, str):
        return bare_text(element) == bare_text(value)
    return value is not None and is_right(element, value)


PUBLISHED_RAN, PUBLISHED_NEW, PUBLISHED_REPEATED, PUBLISHED_STEP = 0.02, 0.01, -0.01, -0.005


def published_operational_of(record: Record) -> float:
    """With the step values of a public environment of this kind: a query that runs, one that shows
    something new, a repetition, each step."""
    earned, before = 0.0, set()
    for call in record.calls:
        earned += PUBLISHED_STEP + PUBLISHED_REPEATED * call.repeated
        if call.result is not None and not call.result.error:
            earned += PUBLISHED_RAN + PUBLISHED_NEW * (call.result.rows not in before)
            before.add(call.result.rows)
    return earned


def published_progress_of(record: Record) -> float:
    """The closeness of the best result so far, in quarters, whether or not there is an answer."""
    best = max((closeness(r.rows, record.gold) for r in record.results), default=0.0)
    return round(best * 4) / 4


def correctness(environments: Sequence[Any], **columns: Any) -> list[float]:
    """1 where the answer is right, else 0; the part that means "passed"."""
    return [correctness_of(e.record) for e in environments]


def progress(environments: Sequence[Any], **columns: Any) -> list[float]:
    """`progress_of`, from 0 to 1."""
    return [progress_of(e.record) for e in environments]


def operational(environments: Sequence[Any], **columns: Any) -> list[float]:
    """`operational_of`: -0.365 (15 times the same failure) to 0.02 (an answer at once that was
    shown is impossible: at best a query and an answer)."""
    return [operational_of(e.record) for e in environments]


def published_progress(environments: Sequence[Any], **columns: Any) -> list[float]:
    """For comparison with the published kind; not meant to train on."""
    return [published_progress_of(e.record) for e in environments]


def published_operational(environments: Sequence[Any], **columns: Any) -> list[float]:
    """For comparison with the published kind; not meant to train on."""
    return [published_operational_of(e.record) for e in environments]
