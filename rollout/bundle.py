"""The rollout phase: a step's tasks, K times each, become trajectory_bundle.jsonl.

It is idempotent: a bundle that is there already is only read, and a phase that was killed goes on
from the trajectories it had finished. The bundle appears whole; until then finished trajectories
live in the partial file beside it, which is valid for one adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial as bind
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup, Task, Trajectory, Turn, read_bundle
from reward.credit import BY_EPISODE, Crediting
from rollout.episode import TurnSeeds
from rollout.flight import Attempt, OnProgress, PartialFile, fly, ignore_progress
from rollout.group import make_group, write_bundle
from rollout.player import Player
from rollout.seeds import training_seed


async def roll_out(
    step: int,
    tasks: Sequence[Task],
    *,
    player: Player,
    run_seed: int,
    group_size: int,
    partial: Path,
    bundle: Path,
    crediting: Crediting = BY_EPISODE,
    on_progress: OnProgress = ignore_progress,
) -> tuple[RolloutGroup, ...]:
    """Play every task `group_size` times, all in flight, and write the bundle.

    Groups come in the order of `tasks`. `partial` and `bundle` are file paths in one existing
    folder. Raises `Unavailable` when an episode fails for good (what is finished is kept),
    `BadInput` when the bundle that is there belongs to another adapter, step or plan.
    """
    if bundle.is_file():
        PartialFile(partial).remove()
        return _check_bundle(bundle, step, tasks, group_size, player.adapter_sha)
    attempts = [Attempt(task, k) for task in tasks for k in range(group_size)]
    trajectories = await fly_training(
        step, attempts, player, run_seed, PartialFile(partial), on_progress
    )
    groups = tuple(
        make_group(step, task, trajectories[i * group_size : (i + 1) * group_size], crediting)
        for i, task in enumerate(tasks)
    )
    await asyncio.to_thread(write_bundle, bundle, groups)
    PartialFile(partial).remove()
    return groups


async def fly_training(
    step: int,
    attempts: Sequence[Attempt],
    player: Player,
    run_seed: int,
    partial: PartialFile | None,
    on_progress: OnProgress = ignore_progress,
) -> list[Trajectory]:
    """Play attempts with the training seeds of `step`; trajectories in the attempts' order."""

    def seeds(attempt: Attempt) -> TurnSeeds:
        return bind(training_seed, run_seed, step, attempt.task.task_id, attempt.k)

    async def play(attempt: Attempt, on_turn: Callable[[Turn], None]) -> Trajectory:
        return await player.play(attempt.task, attempt.k, seeds(attempt), on_turn)

    return await fly(
        attempts,
        play,
        partial=partial,
        take_over=lambda t, a: player.take_over(t, a.task, seeds(a)),
        concurrency=player.settings.concurrency,
        on_progress=on_progress,
        clock=player.clock,
    )


def _check_bundle(
    path: Path, step: int, tasks: Sequence[Task], group_size: int, adapter_sha: str
) -> tuple[RolloutGroup, ...]:
    groups = read_bundle(path)
    found = {
        "step": {g.step for g in groups},
        "tasks": [g.task_id for g in groups],
        "group_size": {len(g.trajectories) for g in groups},
        "adapter": {t.adapter_sha for g in groups for t in g.trajectories},
    }
    wanted = {
        "step": {step},
        "tasks": [t.task_id for t in tasks],
        "group_size": {group_size},
        "adapter": {adapter_sha},
    }
    for key, value in wanted.items():
        if found[key] != value:
            raise BadInput(
                f"{path}: its {key} is {found[key]}, but this step has {value};"
                " remove the file to play the step again"
            )
    return groups
