"""A step's tasks are played K times each, and the K episodes of a task become its group.

A group is complete and every reward in it finite, or there is none. What a reward is worth is
decided in `reward`; files are the business of `rollout.bundle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial as bind

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup, Task, Trajectory
from reward.reward import Reward
from rollout.envs.registry import environment_of
from rollout.flight import Attempt, OnProgress, PartialFile, fly, ignore_progress
from rollout.player import Player, TurnSeeds
from rollout.seeds import training_seed


async def play_groups(
    step: int,
    tasks: Sequence[Task],
    *,
    player: Player,
    run_seed: int,
    group_size: int,
    partial: PartialFile | None,
    on_progress: OnProgress = ignore_progress,
) -> tuple[RolloutGroup, ...]:
    """Play every task `group_size` times with the training seeds of `step`, all in flight.

    Groups come in the order of `tasks`. Raises as `fly`, and as the graders of whole groups.
    """

    def seeds(attempt: Attempt) -> TurnSeeds:
        return bind(training_seed, run_seed, step, attempt.task.task_id, attempt.k)

    attempts = [Attempt(task, k) for task in tasks for k in range(group_size)]
    played = await fly(attempts, player, seeds, partial=partial, on_progress=on_progress)
    groups = []
    for i, task in enumerate(tasks):
        compared = await _compared(task, played[i * group_size : (i + 1) * group_size], player)
        groups.append(make_group(step, task, compared, player.reward))
    return tuple(groups)


async def _compared(
    task: Task, attempts: Sequence[Trajectory], player: Player
) -> Sequence[Trajectory]:
    """The attempts, with what only their comparison can tell in their grades and rewards."""
    of_group = environment_of(task).of_group
    if of_group is None:
        return attempts
    grades = await of_group(task, attempts)
    return [player.graded_again(t, g) for t, g in zip(attempts, grades, strict=True)]


def make_group(
    step: int, task: Task, trajectories: Sequence[Trajectory], reward: Reward
) -> RolloutGroup:
    """The group of a task's K trajectories, in the order k = 0..K-1.

    Raises `ValueError`, naming the task, where a reward is not finite.
    """
    try:
        return RolloutGroup(
            step=step,
            env=task.env,
            task_id=task.task_id,
            trajectories=tuple(trajectories),
            advantages=reward.of_group(trajectories),
            turn_advantages=reward.of_turns(trajectories),
            signal=reward.signal(trajectories),
        )
    except BadInput:
        raise
    except ValueError as e:
        raise ValueError(f"step {step}, task {task.task_id}: {e}") from e
