"""A step's tasks are played K times each, and the K episodes of a task become its group.

A group is complete and all its rewards are finite. For each group in which all K pass or all K
fail, one spare task is played while there are any, in the order of the spare tasks; their number,
and so the choice, does not depend on which episode ends first. At the end as many such groups are
left out of training as spare tasks were played. `reward` computes the rewards, and `rollout.bundle`
writes the file.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial as bind

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup, Signal, Task, Trajectory
from reward.group_signal import draw_of
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
    spare: Sequence[Task] = (),
) -> tuple[RolloutGroup, ...]:
    """Play every task `group_size` times with the training seeds of `step`, all episodes at once.

    Groups come in the order of `tasks`, then of the `spare` tasks that were played. Raises as
    `fly`, and as the graders of whole groups.
    """

    def seeds(attempt: Attempt) -> TurnSeeds:
        return bind(training_seed, run_seed, step, attempt.task.task_id, attempt.k)

    def attempts(tasks: Iterable[Task]) -> list[Attempt]:
        return [Attempt(task, k) for task in tasks for k in range(group_size)]

    ended: defaultdict[str, list[Trajectory]] = defaultdict(list)
    groups: dict[str, RolloutGroup] = {}
    waiting = iter(spare)

    async def more(attempt: Attempt, trajectory: Trajectory) -> Sequence[Attempt]:
        task, of_task = attempt.task, ended[attempt.task.task_id]
        of_task.append(trajectory)
        if len(of_task) < group_size:
            return ()
        compared = await _compared(task, sorted(of_task, key=lambda t: t.k), player)
        group = make_group(step, task, compared, player.reward)
        groups[task.task_id] = group
        return () if draw_of(group).mixed else attempts(itertools.islice(waiting, 1))

    await fly(
        attempts(tasks),
        player,
        seeds,
        partial=partial,
        on_progress=on_progress,
        spare=attempts(spare),
        more=more,
    )
    played = [groups[t.task_id] for t in (*tasks, *spare) if t.task_id in groups]
    return _leave_out(played, len(played) - len(tasks))


def _leave_out(groups: Sequence[RolloutGroup], n: int) -> tuple[RolloutGroup, ...]:
    """Mark `n` of the groups that are not mixed as left out: first those whose attempts did the
    same work and ended alike, and of equals the last."""

    def teaches_less(i: int) -> tuple[bool, int]:
        return draw_of(groups[i]).signal is not Signal.LEARNABLE, i

    unmixed = [i for i, group in enumerate(groups) if not draw_of(group).mixed]
    out = sorted(unmixed, key=teaches_less, reverse=True)[:n]
    return tuple(replace(g, left_out=True) if i in out else g for i, g in enumerate(groups))


async def _compared(
    task: Task, attempts: Sequence[Trajectory], player: Player
) -> Sequence[Trajectory]:
    """The attempts, their grades and rewards completed by the comparison of all attempts."""
    of_group = environment_of(task).of_group
    if of_group is None:
        return attempts
    grades = await of_group(task, attempts)
    return [player.graded_again(t, g) for t, g in zip(attempts, grades, strict=True)]


def make_group(
    step: int, task: Task, trajectories: Sequence[Trajectory], reward: Reward
) -> RolloutGroup:
    """The group of a task's K trajectories, in the order k = 0..K-1.

    Raises `ValueError`, naming the task, if a reward is not finite.
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
