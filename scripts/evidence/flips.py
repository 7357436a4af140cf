"""The held-out tasks on which the newest adapter and the warm start went apart, with both attempts.

A pass rate says that something changed; these say what. Only the two arms that are compared are
read, and only first attempts, whose seeds are matched. How much of them is shown is decided where
they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import StepSummary, Task, Trajectory, read_trajectories
from rollout.arm import SUMMARY, TRAJECTORIES, read_eval, tasks_sha
from scripts.evidence.collect import Evidence, step_name


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


def read_flips(
    evals: Path, evidence: Evidence, steps: Sequence[StepSummary], tasks: Sequence[Task]
) -> Flips:
    """Compare the newest arm's attempts with the reference's. `evidence.newest` must be there."""
    newest = next((s for s in reversed(steps) if step_name(s.step) == evidence.newest), None)
    if newest is None:
        raise BadInput(f"{evidence.newest!r} is the adapter of no finished step of {evals.parent}")
    before = _first_attempts(evals, steps[0].adapter_sha, tasks)
    after = _first_attempts(evals, newest.adapter_sha, tasks)
    found = [
        Flip(task, change, before[task.task_id], after[task.task_id])
        for task in tasks
        if (change := change_of(before[task.task_id], after[task.task_id])) is not None
    ]
    order = list(Change)
    return Flips(
        evidence.reference,
        newest_name(evidence),
        tuple(sorted(found, key=lambda f: order.index(f.change))),
    )


def newest_name(evidence: Evidence) -> str:
    """The newest arm's name, which must be there."""
    assert evidence.newest is not None
    return evidence.newest


def change_of(before: Trajectory, after: Trajectory) -> Change | None:
    """How the second attempt differs from the first, or None."""
    if before.grade.passed != after.grade.passed:
        return Change.LOST if before.grade.passed else Change.WON
    return Change.ENDING if before.stop_reason is not after.stop_reason else None


def _first_attempts(evals: Path, adapter: str, tasks: Sequence[Task]) -> dict[str, Trajectory]:
    wanted = tasks_sha(tasks)
    for file in sorted(evals.glob(f"*/{SUMMARY}")):
        summary = read_eval(file.parent)
        if (summary.adapter_sha, summary.tasks_sha) == (adapter, wanted):
            played = read_trajectories(file.parent / TRAJECTORIES)
            return {t.task_id: t for t in played if t.k == 0}
    raise BadInput(f"{evals}: no evaluation of adapter {adapter[:12]} on these {len(tasks)} tasks")
