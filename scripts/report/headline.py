"""The first screen: the verdict, four figures with their intervals, what got worse, what it cost.

One minute of reading has to be enough, so everything here is a pick from what is computed
elsewhere; what is picked as worse or better are differences that the evidence calls proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fieldkit.eval.stats import Estimate
from scripts.evidence.collect import TAGS, Evidence, SplitRow
from scripts.evidence.findings import Findings
from scripts.evidence.text_page import NOT_YET
from scripts.evidence.verdict import proven
from scripts.evidence.wall_time import WallTime, duration
from scripts.words import quantities

NO_EVIDENCE = "Nothing has been evaluated, so there is no verdict."
UNMATCHED = "There is no verdict: what was evaluated could not be compared."

ONE_IN = 40
"""A 95 % interval lies below zero by luck alone once in so many times."""


@dataclass(frozen=True)
class Tile:
    """One figure: what it is, before → after, and the difference with its interval."""

    name: str
    value: str
    before: str
    change: str
    sign: int
    """+1 better, −1 worse, 0 not told from luck."""


@dataclass(frozen=True)
class Headline:
    """The verdict as text, and the figures below it."""

    sentence: str
    details: tuple[str, ...]
    tiles: tuple[Tile, ...]
    worse: tuple[str, ...]
    worse_note: str


def headline(m: Findings, wall: WallTime | None) -> Headline:
    """What the page opens with."""
    verdict = m.verdict
    cost = _cost_tile(m, wall)
    if m.evidence is None or verdict is None:
        return Headline(_why_none(m), (), cost, (), "")
    worse, n_looked_at = _worse(m.evidence)
    return Headline(
        sentence=verdict.headline,
        details=verdict.details,
        tiles=(*_tiles(m.evidence), *cost),
        worse=worse,
        worse_note=(
            f"Of {n_looked_at} intervals below, {len(worse) or 'none'} on the worse side of zero;"
            f" by luck alone it is one in {ONE_IN}."
        ),
    )


def _why_none(m: Findings) -> str:
    if m.evidence is not None:
        return NOT_YET
    return UNMATCHED if m.summaries else NO_EVIDENCE


def _tiles(evidence: Evidence) -> tuple[Tile, ...]:
    assert evidence.newest is not None
    before, after = evidence.arm(evidence.reference), evidence.arm(evidence.newest)
    change = evidence.against_reference(evidence.newest)
    return (
        Tile(
            "ended by itself",
            f"{after.stopped} of {after.n_tasks}",
            f"{before.name}: {before.stopped}",
            _tested(change.stopped.difference, change.stopped.test.p_value),
            proven(change.stopped),
        ),
        Tile(
            "tasks passed",
            f"{after.passed} of {after.n_tasks}",
            f"{before.name}: {before.passed}",
            _tested(change.passed.difference, change.passed.test.p_value),
            proven(change.passed),
        ),
        Tile(
            "assertions that hold",
            quantities.percent(after.assertion_rate.value),
            f"{before.name}: {quantities.percent(before.assertion_rate.value)}",
            f"{quantities.estimate(change.assertion_rate)} points",
            change.assertion_rate.sign,
        ),
        Tile(
            "turns a task",
            quantities.turns(after.mean_turns.value),
            f"{before.name}: {quantities.turns(before.mean_turns.value)}",
            quantities.estimate(change.turns, as_points=False),
            -change.turns.sign,
        ),
    )


def _tested(difference: Estimate, p: float) -> str:
    return f"{quantities.estimate(difference)} points, p {quantities.p_value(p, equals=True)}"


def _cost_tile(m: Findings, wall: WallTime | None) -> tuple[Tile, ...]:
    if wall is None:
        return ()
    each = f"{duration(wall.training / wall.n_steps)} a step" if wall.n_steps else ""
    steps = quantities.counted(len(m.played), "step")
    return (Tile("the night took", duration(wall.wall), steps, _cost_change(each, wall.evals), 0),)


def _cost_change(each: str, evals: float) -> str:
    return ", ".join(t for t in (each, f"evaluations {duration(evals)}" if evals else "") if t)


def _worse(evidence: Evidence) -> tuple[tuple[str, ...], int]:
    """Rows of the split tables that got worse beyond their interval; and intervals looked at."""
    found, n = [], 0
    for where, row in _split_rows(evidence):
        if row.paired is None:
            continue
        n += 1
        change = row.paired.assertion_rate
        if change.sign < 0:
            found.append(f"{where} {row.value}: assertions {quantities.estimate(change)} points")
    return tuple(found), n


def _split_rows(evidence: Evidence) -> Iterator[tuple[str, SplitRow]]:
    for tag, rows in evidence.splits.items():
        for row in rows:
            yield TAGS[tag], row
    for row in evidence.kinds:
        yield "assertions of kind", row
