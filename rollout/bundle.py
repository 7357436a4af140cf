"""The rollout phase: a step's tasks, K times each, become trajectory_bundle.jsonl.

It is idempotent: an existing bundle is only read, and a phase that was killed continues from the
trajectories it had finished. The bundle appears whole, as one file or, where it is large, as shards
(`fieldkit.files.sharded`). Until then finished trajectories are in the partial file next to it,
which is valid for one adapter.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path

from fieldkit.codec import encode_group, read_bundle
from fieldkit.errors import BadInput
from fieldkit.files.sharded import stored, write_records
from fieldkit.records import RolloutGroup, Task
from rollout.flight import OnProgress, PartialFile, ignore_progress
from rollout.group import play_groups
from rollout.player import Player


async def roll_out(
    step: int,
    tasks: Sequence[Task],
    *,
    player: Player,
    run_seed: int,
    group_size: int,
    partial: Path,
    bundle: Path,
    on_progress: OnProgress = ignore_progress,
    spare: Sequence[Task] = (),
) -> tuple[RolloutGroup, ...]:
    """Play every task `group_size` times, all episodes at once, and write the bundle.

    Groups come in the order of `tasks`; `spare` as in `play_groups`. `partial` and `bundle` are
    file paths in one existing folder. Raises `Unavailable` when an episode fails repeatedly
    (finished ones are kept), and `BadInput` when there is no task or an existing bundle belongs to
    another adapter, step or plan.
    """
    unfinished = PartialFile(partial)
    if stored(bundle) is not None:
        unfinished.remove()
        return _check_bundle(bundle, step, tasks, spare, group_size, player.adapter_sha)
    if not tasks:
        raise BadInput(f"{bundle}: a bundle needs at least one group")
    groups = await play_groups(
        step,
        tasks,
        player=player,
        run_seed=run_seed,
        group_size=group_size,
        partial=unfinished,
        on_progress=on_progress,
        spare=spare,
    )
    await asyncio.to_thread(write_records, bundle, map(encode_group, groups))
    unfinished.remove()
    return groups


def _check_bundle(
    path: Path,
    step: int,
    tasks: Sequence[Task],
    spare: Sequence[Task],
    group_size: int,
    adapter_sha: str,
) -> tuple[RolloutGroup, ...]:
    groups = read_bundle(path)  # the phase reports on all of them, as when they were played
    planned = [*tasks, *spare][: max(len(tasks), len(groups))]
    facts: dict[str, tuple[object, object]] = {
        "step": ({g.step for g in groups}, {step}),
        "tasks": ([g.task_id for g in groups], [t.task_id for t in planned]),
        "group_size": ({len(g.trajectories) for g in groups}, {group_size}),
        "adapter": ({t.adapter_sha for g in groups for t in g.trajectories}, {adapter_sha}),
    }
    for key, (found, wanted) in facts.items():
        if found != wanted:
            raise BadInput(
                f"{path}: its {key} is {found}, but this step has {wanted};"
                f" `rm -r {shlex.quote(str(stored(path)))}`, and the same command plays the step"
                " again"
            )
    return groups
