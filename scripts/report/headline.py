"""The first screen: the verdict, four figures with their intervals, what got worse, what it cost.

One minute of reading has to be enough, so everything here is a pick from what is computed
elsewhere; what is picked as worse or better are differences that the evidence calls proven.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldkit.eval.stats import PairedProportions
from scripts.evidence.collect import TAGS, Evidence
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

    def counted(name: str, was: int, now: int, tested: PairedProportions) -> Tile:
        found = f"{quantities.estimate(tested.difference)} points"
        p = quantities.p_value(tested.test.p_value, equals=True)
        of = f"{now} of {after.n_tasks}"
        return Tile(name, of, f"{before.name}: {was}", f"{found}, p {p}", proven(tested))

    return (
        counted("ended by itself", before.stopped, after.stopped, change.stopped),
        counted("tasks passed", before.passed, after.passed, change.passed),
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


def _cost_tile(f: Findings, wall: WallTime | None) -> tuple[Tile, ...]:
    if wall is None:
        return ()
    each = [f"{duration(wall.training / wall.n_steps)} a step"] if wall.n_steps else []
    evals = [f"evaluations {duration(wall.evals)}"] if wall.evals else []
    steps = quantities.counted(len(f.played), "step")
    return (Tile("the night took", duration(wall.wall), steps, ", ".join(each + evals), 0),)


def _worse(evidence: Evidence) -> tuple[tuple[str, ...], int]:
    """Rows of the split tables that got worse beyond their interval; and intervals looked at."""
    by = {TAGS[tag]: rows for tag, rows in evidence.splits.items()}
    by["assertions of kind"] = evidence.kinds
    changes = [
        (f"{where} {row.value}", row.paired.assertion_rate)
        for where, rows in by.items()
        for row in rows
        if row.paired is not None
    ]
    worse = [
        f"{what}: assertions {quantities.estimate(change)} points"
        for what, change in changes
        if change.sign < 0
    ]
    return tuple(worse), len(changes)
