"""Reads the finished evaluations of a run from evals/<key>/, and names their arms.

This is the only reader of evaluations: of summaries alone if sums are enough, and of trajectories
for pairs and transcripts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import StepSummary, Task, Trajectory, read_trajectories
from rollout.arm import BASE_ADAPTER, SUMMARY, EvalSummary, read_eval, tasks_sha, transcripts
from rollout.yardsticks import YARDSTICKS

BASE = BASE_ADAPTER
"""The base model's arm has one name: in tables, on the command line and where a hash stands."""
WARM_START = "warm start"


@dataclass(frozen=True)
class PlayedArm:
    """One finished evaluation: its summary and its trajectories."""

    summary: EvalSummary
    trajectories: tuple[Trajectory, ...]

    @property
    def first_attempts(self) -> dict[str, Trajectory]:
        """By task: the attempt whose seed every arm of the run has too."""
        return {t.task_id: t for t in self.trajectories if t.k == 0}


def finished(evals: Path) -> list[Path]:
    """The folders of the finished evaluations below a run's evals/, sorted by key."""
    return sorted(file.parent for file in evals.glob(f"*/{SUMMARY}"))


def read_summaries(evals: Path) -> list[EvalSummary]:
    """Read the summary of every finished evaluation, in reading order: the newest adapter last.

    Raises as `read_eval`."""
    return sorted(map(read_eval, finished(evals)), key=lambda s: reading_order(s.arm))


def read_arms(evals: Path, tasks: Sequence[Task]) -> dict[str, PlayedArm]:
    """Read the finished evaluations on exactly these tasks, by adapter hash; skip all others.

    Raises `BadInput` if one adapter was evaluated under two settings.
    """
    wanted = tasks_sha(tasks)
    found: dict[str, PlayedArm] = {}
    for folder in finished(evals):
        summary = read_eval(folder)
        if summary.tasks_sha != wanted:
            continue
        if summary.adapter_sha in found:
            other = found[summary.adapter_sha].summary
            raise BadInput(
                f"{folder}: {summary.arm} was evaluated before under other settings in"
                f" {other.key}; move one of the two folders away"
            )
        found[summary.adapter_sha] = _with_trajectories(folder, summary)
    return found


def read_played(folder: Path) -> PlayedArm:
    """Read one finished evaluation. Raises `BadInput` if summary and trajectories disagree."""
    return _with_trajectories(folder, read_eval(folder))


def _with_trajectories(folder: Path, summary: EvalSummary) -> PlayedArm:
    file = transcripts(folder)
    with _without_garbage():
        trajectories = read_trajectories(file)
    if len(trajectories) != summary.n_trajectories:
        raise BadInput(
            f"{file}: {len(trajectories)} trajectories, but {SUMMARY} speaks of"
            f" {summary.n_trajectories}; remove the folder and evaluate again"
        )
    return PlayedArm(summary, trajectories)


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Exempt all objects created inside from garbage collection, for good.

    Trajectories are many objects that live until the page is written: each full collection would
    walk through all of them and free nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# --- names ----------------------------------------------------------------------------------------


def read_named(
    evals: Path, tasks: Sequence[Task], steps: Sequence[StepSummary], to_play: str
) -> dict[str, PlayedArm]:
    """Read the arms of a run by their names in tables, in reading order.

    Adapters that belong to no step are left out. A step without signal keeps its adapter, so
    several steps can share one: it is named after the last. to_play: RUN in a command that plays.
    Raises as `read_arms`, and `BadInput` if the warm start has no evaluation on these tasks.
    """
    names = arm_names(steps)
    arms = {names[sha]: arm for sha, arm in read_arms(evals, tasks).items() if sha in names}
    if WARM_START not in arms:
        raise BadInput(
            f"{evals}: the warm start has no finished evaluation on these {len(tasks)} tasks; run"
            f" `grpo eval {to_play}`"
        )
    return {name: arms[name] for name in sorted(arms, key=reading_order)}


def arm_names(steps: Sequence[StepSummary]) -> dict[str, str]:
    """Adapter hash, or what stands for it, → the arm's name in tables."""
    names = {sha: sha for sha in YARDSTICKS} | {BASE_ADAPTER: BASE}
    names |= {step.adapter_sha: step_name(step.step) for step in steps}
    if steps:
        names[steps[0].adapter_sha] = WARM_START
    return names


def step_name(step: int) -> str:
    """The name in tables of the adapter that `step` trained."""
    return f"step {step}"


def reading_order(name: str) -> tuple[int, int]:
    """A sort key for arm names: yardsticks, base, warm start, then adapters by step."""
    first = [*YARDSTICKS, BASE, WARM_START]
    number = name.rpartition(" ")[2]
    return (
        first.index(name) if name in first else len(first),
        int(number) if number.isdecimal() else 0,
    )
