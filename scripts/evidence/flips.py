"""The held-out tasks on which the newest adapter and the warm start went apart, with both attempts.

A pass rate says that something changed; these say what. Only first attempts count, whose seeds are
matched. How much of them is shown is decided where they are shown.
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
    """The reference passed, the newest adapter does not."""
    WON = "WON"
    """The newest adapter passes, the reference did not."""
    ENDING = "ENDING"
    """Both passed or both failed, and they ended for different reasons."""


@dataclass(frozen=True)
class Flip:
    """One task and the two attempts at it."""

    task: Task
    change: Change
    before: Trajectory
    after: Trajectory


@dataclass(frozen=True)
class Flips:
    """Every task that flipped: lost first, then won, then other endings; in task order within."""

    before: str
    after: str
    flips: tuple[Flip, ...]

    def of(self, change: Change) -> tuple[Flip, ...]:
        """Those of one kind."""
        return tuple(f for f in self.flips if f.change is change)


def find_flips(
    evidence: Evidence, arms: Mapping[str, PlayedArm], tasks: Sequence[Task]
) -> Flips | None:
    """Compare the newest arm's first attempts with the reference's; None where there is no newest.

    arms: those that `evidence` was made from, by name.
    """
    if evidence.newest is None:
        return None
    before, after = (
        {t.task_id: t for t in arms[name].trajectories if t.k == 0}
        for name in (evidence.reference, evidence.newest)
    )
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
    """How the second attempt differs from the first, or None."""
    if before.grade.passed != after.grade.passed:
        return Change.LOST if before.grade.passed else Change.WON
    return Change.ENDING if before.stop_reason is not after.stop_reason else None
