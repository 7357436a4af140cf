"""The page's first screen: the verdict, its figures with intervals, what got worse, and the cost.

It must be readable in a minute, so it is a selection. Only proven differences count as worse or
better.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldkit.eval.matched import ArmRow, PairedRow
from fieldkit.eval.stats import Interval, PairedProportions
from scripts.evidence.collect import Evidence
from scripts.evidence.findings import Findings
from scripts.evidence.text_page import no_verdict
from scripts.evidence.verdict import PASSES, STOPPED, Habit, Verdict, lost_since
from scripts.evidence.wall_time import WallTime
from scripts.words import quantities

NO_EVIDENCE = "Nothing has been evaluated, so there is no verdict."
UNMATCHED = "There is no verdict: what was evaluated could not be compared."

ONE_IN = 40
"""By luck alone, one in this many 95 % intervals lies below zero."""

_NO_INTERVAL = (None, Interval(0.0, 0.0))
"""Of one task, and of tasks of which none moved: neither can lie below zero."""


@dataclass(frozen=True)
class Tile:
    """One figure: its name, its values before and after, and the difference with its interval."""

    name: str
    value: str
    before: str
    change: str
    sign: int
    """+1 better, −1 worse, 0 not distinguishable."""


@dataclass(frozen=True)
class Headline:
    """The verdict as text, and the figures below it. notes: what no figure shows."""

    sentence: str
    notes: tuple[str, ...]
    tiles: tuple[Tile, ...]
    worse: tuple[str, ...]
    worse_note: str


def headline(m: Findings, wall: WallTime | None) -> Headline:
    """Make the page's first screen."""
    verdict = m.verdict
    cost = _cost_tile(m, wall)
    if m.evidence is None or verdict is None:
        return Headline(_why_none(m), (), cost, (), "")
    tiles = _tiles(m.evidence, verdict)
    rows, n_looked_at = _worse(m.evidence)
    return Headline(
        sentence=verdict.headline,
        notes=(*_on_unseen(m.evidence), *verdict.notes),
        tiles=(*tiles, *cost),
        worse=(
            *(f"{tile.name}: {tile.change}" for tile in tiles if tile.sign < 0),
            *_proven_worse(m.evidence),
            *rows,
        ),
        worse_note=(
            f"Of {quantities.counted(n_looked_at, 'interval')} of assertions under “Where it"
            f" changed”, {len(rows) or 'none'} on the worse side of zero; by luck alone one in"
            f" {ONE_IN} is, and where fewer than six tasks changed none can be."
        )
        if n_looked_at
        else "",
    )


def _why_none(m: Findings) -> str:
    if m.evidence is not None:
        return no_verdict(m)
    return UNMATCHED if m.summaries else NO_EVIDENCE


def _tiles(evidence: Evidence, verdict: Verdict) -> tuple[Tile, ...]:
    assert evidence.newest is not None
    before, after = evidence.arm(evidence.reference), evidence.arm(evidence.newest)
    change = evidence.against_reference(evidence.newest)

    def counted(name: str, was: int, now: int, tested: PairedProportions, done: str = "") -> Tile:
        found = f"{quantities.estimate(tested.difference)} points"
        test = verdict.test(name)
        p = quantities.p_value(test.adjusted, equals=True)
        of = f"{now} of {after.n_tasks}"
        return Tile(name, of, f"{done}{before.name}: {was}", f"{found}, p {p}", test.sign)

    done = f"{after.stopped_and_passed} of them passed; " if after.stopped else ""
    # Where there was no habit of going on, more turns may be what the work takes.
    had_habit = verdict.habit is not Habit.NEVER_THERE
    return (
        counted(PASSES, before.passed, after.passed, change.passed),
        counted(STOPPED, before.stopped, after.stopped, change.stopped, done),
        *_in_support(before, after, change),
        Tile(
            "turns a task",
            quantities.turns(after.mean_turns.value),
            f"{before.name}: {quantities.turns(before.mean_turns.value)}",
            quantities.estimate(change.turns, as_points=False),
            -change.turns.sign if had_habit else 0,
        ),
    )


def _in_support(before: ArmRow, after: ArmRow, change: PairedRow) -> tuple[Tile, ...]:
    """The assertions; where a task has a single one, its reward, which the passes do not say."""
    if after.has_parts:
        rate = Tile(
            "assertions that hold",
            quantities.percent(after.assertion_rate.value),
            f"{before.name}: {quantities.percent(before.assertion_rate.value)}",
            f"{quantities.estimate(change.assertion_rate)} points",
            change.assertion_rate.sign,
        )
        return (rate,)
    if change.reward is None or after.mean_reward is None or before.mean_reward is None:
        return ()
    reward = Tile(
        "mean reward",
        quantities.plain(after.mean_reward, 2),
        f"{before.name}: {quantities.plain(before.mean_reward, 2)}",
        quantities.estimate(change.reward, as_points=False, digits=2),
        change.reward.sign,
    )
    return (reward,)


def _cost_tile(f: Findings, wall: WallTime | None) -> tuple[Tile, ...]:
    if wall is None:
        return ()
    each = [f"{quantities.duration(wall.training / wall.n_steps)} a step"] if wall.n_steps else []
    evals = [f"evaluations {quantities.duration(wall.evals)}"] if wall.evals else []
    steps = quantities.counted(len(f.played), "step")
    return (
        Tile("time at work", quantities.duration(wall.wall), steps, ", ".join(each + evals), 0),
    )


def _on_unseen(evidence: Evidence) -> tuple[str, ...]:
    """How the tasks went whose kind no training task has, where there are others too."""
    rows = {row.value: row for row in evidence.splits.get("template", ())}
    row = rows.get("unseen") if len(rows) > 1 else None
    if row is None or row.paired is None:
        return ()
    before, after = (row.rows[name].passed for name in (evidence.reference, row.paired.name))
    held = quantities.with_interval(row.paired.assertion_rate)
    parts = f"; assertions that hold: {held}" if row.rows[row.paired.name].has_parts else ""
    return (
        f"Of the {row.n_tasks} tasks of templates that training has not, {after} passed, {before}"
        f" before ({quantities.with_interval(row.paired.passed.difference)}){parts}.",
    )


def _proven_worse(evidence: Evidence) -> tuple[str, ...]:
    """Where fewer tasks pass beyond luck: than at an earlier step, or in rows of a split table."""
    since = [(f"since {p.reference}", p.passed.difference) for p in lost_since(evidence.late)]
    rows = [
        (f"{tag} {row.value}", row.paired.passed.difference)
        for tag, found in evidence.splits.items()
        for row in found
        if row.paired is not None and row.paired.passed.sign < 0
    ]
    return tuple(
        f"{where}: tasks passed {quantities.estimate(change)} points"
        for where, change in (*since, *rows)
    )


def _worse(evidence: Evidence) -> tuple[tuple[str, ...], int]:
    """Rows of the split tables whose interval lies below zero, and the number of intervals."""
    by = {**evidence.splits, "assertions of kind": evidence.kinds}
    changes = [
        (f"{where} {row.value}", row.paired.assertion_rate)
        for where, rows in by.items()
        for row in rows
        if row.paired is not None and row.paired.assertion_rate.interval not in _NO_INTERVAL
    ]
    worse = [
        f"{what}: assertions {quantities.estimate(change)} points"
        for what, change in changes
        if change.sign < 0
    ]
    return tuple(worse), len(changes)
