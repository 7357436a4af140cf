"""The held-out tasks on which the newest adapter and the warm start differ, with both attempts.

A pass rate shows that behaviour changed; flipped tasks show what changed. Only first attempts
count, because their seeds match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fieldkit.records import Task, Trajectory
from scripts.evidence.collect import Evidence
from scripts.evidence.played import PlayedArm


class Change(StrEnum):
    """How two attempts at one task differ."""

    LOST = "LOST"
    """The reference passed, the newest adapter failed."""
    WON = "WON"
    """The newest adapter passed, the reference failed."""
    ENDING = "ENDING"
    """Both passed or both failed, but their stop reasons differ."""


@dataclass(frozen=True)
class Flip:
    """One task and the two attempts at it."""

    task: Task
    change: Change
    before: Trajectory
    after: Trajectory


@dataclass(frozen=True)
class Flips:
    """Every flipped task: lost, then won, then other endings; in task order within each."""

    before: str
    after: str
    flips: tuple[Flip, ...]

    def of(self, change: Change) -> tuple[Flip, ...]:
        """The flips of one kind."""
        return tuple(f for f in self.flips if f.change is change)


def find_flips(
    evidence: Evidence, arms: Mapping[str, PlayedArm], tasks: Sequence[Task]
) -> Flips | None:
    """Compare the first attempts of the newest arm and the reference; None without a newest arm.

    arms: the arms of `evidence`, by name.
    """
    if evidence.newest is None:
        return None
    before, after = (arms[name].first_attempts for name in (evidence.reference, evidence.newest))
    found = [
        Flip(task, change, before[task.task_id], after[task.task_id])
        for task in tasks
        if (change := change_of(before[task.task_id], after[task.task_id])) is not None
    ]
    order = list(Change)
    return Flips(
        evidence.reference,
        evidence.newest,
        tuple(sorted(found, key=lambda f: order.index(f.change))),
    )


def change_of(before: Trajectory, after: Trajectory) -> Change | None:
    """How `after` differs from `before`; None if it does not."""
    if before.grade.passed != after.grade.passed:
        return Change.LOST if before.grade.passed else Change.WON
    return Change.ENDING if before.stop_reason is not after.stop_reason else None
