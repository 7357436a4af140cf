"""The means of each part of the reward, by environment and arm.

The trajectories of environments that give rewards hold the parts. The sum hides which part changed,
so each part is shown, including those of weight 0, which are not trained on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fieldkit.records import Task, Trajectory


@dataclass(frozen=True)
class PartRow:
    """One part of the reward in one environment."""

    env: str
    name: str
    weight: float
    means: Mapping[str, float | None]
    """Arm → mean over the attempts to which the part applies; None if there are none."""


def part_rows(
    played: Mapping[str, Sequence[Trajectory]], tasks: Sequence[Task]
) -> tuple[PartRow, ...]:
    """A row for each part, in the order of environments and of their parts; empty if no environment
    gives rewards. played: each arm's trajectories by its name."""
    env_of = {task.task_id: task.env for task in tasks}
    weights: dict[tuple[str, str], float] = {}
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for arm, trajectories in played.items():
        for trajectory in trajectories:
            for part in trajectory.grade.rewards:
                key = env_of[trajectory.task_id], part.name
                weights.setdefault(key, part.weight)
                of_arm = values.setdefault(key, {}).setdefault(arm, [])
                if part.value is not None:
                    of_arm.append(part.value)
    envs = list(dict.fromkeys(env_of.values()))
    return tuple(
        PartRow(env, name, weights[env, name], {a: _mean(v) for a, v in values[env, name].items()})
        for env, name in sorted(values, key=lambda key: envs.index(key[0]))
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
