"""K attempts at one task become a group, and the groups of a step become the bundle.

The bundle is what rollout hands to the trainer, so it appears whole or not at all, with every
group complete and every reward finite. What a reward is worth is decided in `reward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_text
from fieldkit.records import RolloutGroup, Task, Trajectory, encode_group
from reward.credit import BY_EPISODE, Crediting
from reward.group_signal import group_signal


def make_group(
    step: int,
    task: Task,
    trajectories: Sequence[Trajectory],
    crediting: Crediting = BY_EPISODE,
) -> RolloutGroup:
    """The group of a task's K trajectories, in the order k = 0..K-1.

    Raises `ValueError`, naming the task, where a reward is not finite.
    """
    rewards = [t.reward for t in trajectories]
    try:
        return RolloutGroup(
            step=step,
            env=task.env,
            task_id=task.task_id,
            trajectories=tuple(trajectories),
            advantages=crediting.of_episodes(trajectories),
            turn_advantages=crediting.of_turns(trajectories),
            signal=group_signal(rewards, [t.grade for t in trajectories]),
        )
    except ValueError as e:
        raise ValueError(f"step {step}, task {task.task_id}: {e}") from e


def write_bundle(path: Path, groups: Sequence[RolloutGroup]) -> None:
    """Write trajectory_bundle.jsonl, whole, by rename. Raises `BadInput` for no groups."""
    if not groups:
        raise BadInput(f"{path}: a bundle needs at least one group")
    write_text(path, "".join(encode_group(g) + "\n" for g in groups))
