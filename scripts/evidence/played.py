"""The finished evaluations of a run as they lie in evals/<key>/, and what their arms are called.

One reader for all who look at evaluations: summaries alone where sums are enough, trajectories
where pairs are made or a transcript is shown. Nothing is compared here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import StepSummary, Task, Trajectory, read_trajectories
from rollout.arm import BASE_ADAPTER, SUMMARY, TRAJECTORIES, EvalSummary, read_eval, tasks_sha
from rollout.yardsticks import YARDSTICKS

BASE = "base"
WARM_START = "warm start"


@dataclass(frozen=True)
class PlayedArm:
    """One finished evaluation: its summary and its trajectories."""

    summary: EvalSummary
    trajectories: tuple[Trajectory, ...]


def finished(evals: Path) -> list[Path]:
    """The folder of every finished evaluation below a run's evals/, by key."""
    return sorted(file.parent for file in evals.glob(f"*/{SUMMARY}"))


def read_summaries(evals: Path) -> list[EvalSummary]:
    """Every finished evaluation's own sums, in the order of the tables: the newest adapter last.

    Raises as `read_eval`."""
    return sorted(map(read_eval, finished(evals)), key=lambda s: reading_order(s.arm))


def read_arms(evals: Path, tasks: Sequence[Task]) -> dict[str, PlayedArm]:
    """Adapter hash → finished evaluation on exactly these tasks; others are passed over.

    Raises `BadInput` where one adapter was evaluated twice under other settings.
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
    """One finished evaluation. Raises `BadInput` where summary and trajectories do not agree."""
    return _with_trajectories(folder, read_eval(folder))


def _with_trajectories(folder: Path, summary: EvalSummary) -> PlayedArm:
    with _without_garbage():
        trajectories = read_trajectories(folder / TRAJECTORIES)
    if len(trajectories) != summary.n_trajectories:
        raise BadInput(
            f"{folder / TRAJECTORIES}: {len(trajectories)} trajectories, but {SUMMARY} speaks of"
            f" {summary.n_trajectories}; remove the folder and evaluate again"
        )
    return PlayedArm(summary, trajectories)


@contextmanager
def _without_garbage() -> Iterator[None]:
    """For what makes many objects that live until the page is written: the collector, which would
    walk through them again and again to find nothing, leaves them alone, now and later (statsmodels
    calls it each time)."""
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
    """The arms of a run by the name that a reader knows them by, in reading order.

    Adapters of no step are left out. A step without signal carries its adapter on: the last step
    names it. to_play: RUN in a command that plays. Raises as `read_arms`, and `BadInput` where the
    warm start has no evaluation on these tasks.
    """
    names = {sha: sha for sha in YARDSTICKS} | {BASE_ADAPTER: BASE}
    names |= {step.adapter_sha: step_name(step.step) for step in steps}
    if steps:
        names[steps[0].adapter_sha] = WARM_START
    arms = {names[sha]: arm for sha, arm in read_arms(evals, tasks).items() if sha in names}
    if WARM_START not in arms:
        raise BadInput(
            f"{evals}: the warm start has no finished evaluation on these {len(tasks)} tasks; run"
            f" `grpo eval {to_play}`"
        )
    return {name: arms[name] for name in sorted(arms, key=reading_order)}


def step_name(step: int) -> str:
    """What the adapter that `step` made is called in tables."""
    return f"step {step}"


def reading_order(name: str) -> tuple[int, int]:
    """Sorts arms by name: yardsticks, base, warm start, then adapters by step."""
    first = [*YARDSTICKS, BASE, WARM_START]
    number = name.rpartition(" ")[2]
    return (
        first.index(name) if name in first else len(first),
        int(number) if number.isdecimal() else 0,
    )
