"""Arms that were played with several seeds: each against where it started, and against the first.

One night says nothing about the next one, so an arm here is all its nights: of every held-out task
the mean over them, and tests over the tasks. Everything is read from finished evaluations.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval import stats
from fieldkit.eval.matched import TaskOutcome
from fieldkit.eval.stats import Estimate
from fieldkit.files.journal import Journal
from fieldkit.records import StepSummary
from scripts.evidence.collect import TaskSet, opened_before, outcome, played_on
from scripts.evidence.conditions import refuse_unmatched
from scripts.evidence.milestones import milestones
from scripts.evidence.stored_arm import WARM, StoredArm, read_arm
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader

Outcomes = Mapping[str, TaskOutcome]

MEASURES: dict[str, Callable[[TaskOutcome], float]] = {
    "passed": lambda o: float(o.passed),
    "stopped": lambda o: float(o.stopped),
    "turns": lambda o: float(o.turns),
}
"""What is compared, of one task."""


@dataclass(frozen=True)
class SeedNight:
    """A night with its newest evaluated adapter and the one that it started from."""

    name: str
    start: Outcomes
    end: Outcomes
    steps: tuple[StepSummary, ...]

    def total(self, at: Outcomes, measure: str) -> float:
        """The sum of a measure over the tasks."""
        return sum(map(MEASURES[measure], at.values()))

    @property
    def stops_90(self) -> int | None:
        """The first step in which 90 % of the attempts ended by themselves."""
        return milestones(self.steps).stops_90


@dataclass(frozen=True)
class Change:
    """A mean difference by task, and the p-value of the sign-flip test, adjusted (Holm) over the
    arms of its table."""

    estimate: Estimate
    p: float

    @property
    def sign(self) -> int:
        """+1 or −1 where test and interval agree on it, else 0."""
        return self.estimate.sign if self.p < 1 - stats.LEVEL else 0


Changes = Mapping[str, Change]
"""By measure."""


@dataclass(frozen=True)
class SeedsArm:
    """One arm. gain: of its end against its start, by measure; against: of its end against the
    first arm's, None for that one itself."""

    name: str
    nights: tuple[SeedNight, ...]
    gain: Changes
    against: Changes | None

    def mean(self, measure: str, *, start: bool = False) -> float:
        """A measure's mean over tasks and nights."""
        return statistics.fmean(_by_task(self.nights, measure, start))


@dataclass(frozen=True)
class SeedsComparison:
    """Arms over the same held-out tasks. unplayed: the nights whose newest adapter has no
    evaluation yet, and that are left out. opened_before: as `collect.opened_before`."""

    n_tasks: int
    played_on: TaskSet
    opened_before: tuple[str, ...]
    arms: tuple[SeedsArm, ...]
    unplayed: tuple[str, ...]

    @property
    def reference(self) -> str:
        """The arm that the others are held against."""
        return self.arms[0].name

    def plain(self) -> dict[str, Any]:
        """Every number, JSON-ready."""
        return {
            "schema": 1,
            "n_tasks": self.n_tasks,
            "played_on": self.played_on.value,
            "opened_before": list(self.opened_before),
            "reference": self.reference,
            "unplayed": list(self.unplayed),
            "arms": [_plain(arm) for arm in self.arms],
        }


def compare_over_seeds(arms: Mapping[str, Sequence[Path]]) -> SeedsComparison:
    """Compare arms by name, each with its nights' run folders.

    Raises `BadInput` where no night of an arm has evaluated its newest adapter, and where
    evaluations were not played alike.
    """
    stored: dict[str, StoredArm] = {}
    nights: dict[str, list[SeedNight]] = {name: [] for name in arms}
    unplayed = []
    for name, folders in arms.items():
        for folder in folders:
            if not _is_evaluated(RunReader(RunFolder(folder))):
                unplayed.append(folder.name)
                continue
            start, end = read_arm(f"{folder}@{WARM}"), read_arm(str(folder))
            stored |= {f"{folder.name}@{arm.arm}": arm for arm in (start, end)}
            nights[name].append(_night(folder.name, start, end))
    if empty := [name for name, played in nights.items() if not played]:
        raise BadInput(f"no night of {', '.join(empty)} has evaluated its newest adapter yet")
    refuse_unmatched(stored)
    played = {name: tuple(found) for name, found in nights.items()}
    first, *others = played.values()
    gains = _adjusted([_changes(own, own, start=True) for own in played.values()])
    against = [None, *_adjusted([_changes(first, own, start=False) for own in others])]
    rows = zip(played, played.values(), gains, against, strict=True)
    one = next(iter(stored.values()))
    of_run = one.manifest, Journal(one.folder.journal).read()
    return SeedsComparison(
        n_tasks=len(first[0].end),
        played_on=played_on(*of_run),
        opened_before=opened_before(*of_run),
        arms=tuple(SeedsArm(*row) for row in rows),
        unplayed=tuple(unplayed),
    )


def _is_evaluated(night: RunReader) -> bool:
    """Whether the adapter of the newest step has a finished evaluation."""
    return len(night.steps) > 1 and night.steps[-1].adapter_sha in night.evaluations


def _night(name: str, start: StoredArm, end: StoredArm) -> SeedNight:
    before, after = (
        {task: outcome(t) for task, t in arm.played.first_attempts.items()} for arm in (start, end)
    )
    return SeedNight(name, before, after, RunReader(end.folder).steps)


def _by_task(nights: Sequence[SeedNight], measure: str, start: bool) -> list[float]:
    """Of each task the mean over the nights, in the order of the ids."""
    value = MEASURES[measure]
    ends = [night.start if start else night.end for night in nights]
    return [statistics.fmean(value(end[task]) for end in ends) for task in sorted(ends[0])]


def _changes(before: Sequence[SeedNight], after: Sequence[SeedNight], *, start: bool) -> Changes:
    """after − before by measure, not adjusted yet. start: `before` counts where it started."""
    found = {}
    for measure in MEASURES:
        values = _by_task(before, measure, start), _by_task(after, measure, False)
        pairs = zip(*values, strict=True)
        differences = [b - a for a, b in pairs]
        found[measure] = Change(stats.mean(differences), stats.sign_flips(differences))
    return found


def _adjusted(rows: Sequence[Changes]) -> list[Changes]:
    """The rows of one table with their p-values adjusted, each measure by itself."""
    found: list[dict[str, Change]] = [dict(row) for row in rows]
    for measure in MEASURES if rows else ():
        adjusted = stats.holm([row[measure].p for row in rows])
        for row, p in zip(found, adjusted, strict=True):
            row[measure] = replace(row[measure], p=p)
    return list(found)


def _plain(arm: SeedsArm) -> dict[str, Any]:
    nights = [
        {
            "run": night.name,
            "steps": len(night.steps) - 1,
            "stops_90": night.stops_90,
            "start": {m: night.total(night.start, m) for m in MEASURES},
            "end": {m: night.total(night.end, m) for m in MEASURES},
        }
        for night in arm.nights
    ]
    plain = {"gain": arm.gain, "against": arm.against}
    changes = {
        key: None if found is None else {m: asdict(c) for m, c in found.items()}
        for key, found in plain.items()
    }
    return {"arm": arm.name, "nights": nights, **changes}
