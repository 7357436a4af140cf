"""Arms that were played with several seeds: each against where it started, and against the first.

One night says nothing about the next one, so an arm here is all its nights: of every held-out task
the mean over them, and tests over the tasks. Everything is read from finished evaluations.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.journal import Journal
from fieldkit.records import StepSummary
from scripts.compare.mean_change import MEASURES, Changes, Outcomes, adjusted, by_task, changes
from scripts.evidence.collect import TaskSet, opened_before, outcome, played_on
from scripts.evidence.conditions import refuse_unmatched
from scripts.evidence.milestones import milestones
from scripts.evidence.stored_arm import WARM, StoredArm, read_arm
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader


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
class SeedsArm:
    """One arm. gain: of its end against its start, by measure; against: of its end against the
    first arm's, None for that one itself."""

    name: str
    nights: tuple[SeedNight, ...]
    gain: Changes
    against: Changes | None

    def means(self, measure: str) -> tuple[float, float]:
        """A measure's mean over tasks and nights, at the start and at the end."""
        starts, ends = [n.start for n in self.nights], [n.end for n in self.nights]
        return statistics.fmean(by_task(starts, measure)), statistics.fmean(by_task(ends, measure))


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
        whose = "no night" if len(empty) == len(arms) else f"no night of {', '.join(empty)}"
        sweeps = {RunFolder(folder.parent).typed for folders in arms.values() for folder in folders}
        raise BadInput(
            f"{whose} is finished and evaluated yet; `grpo sweep run {min(sweeps)}` plays them"
        )
    refuse_unmatched(stored)
    played = {name: tuple(found) for name, found in nights.items()}
    starts = [[night.start for night in own] for own in played.values()]
    ends = [[night.end for night in own] for own in played.values()]
    gains = adjusted([changes(*arm) for arm in zip(starts, ends, strict=True)])
    against = [None, *adjusted([changes(ends[0], other) for other in ends[1:]])]
    rows = zip(played, played.values(), gains, against, strict=True)
    one = next(iter(stored.values()))
    of_run = one.manifest, Journal(one.folder.journal).read()
    return SeedsComparison(
        n_tasks=len(ends[0][0]),
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
    compared = {
        key: None if found is None else {m: asdict(c) for m, c in found.items()}
        for key, found in plain.items()
    }
    return {"arm": arm.name, "nights": nights, **compared}
