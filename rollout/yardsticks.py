"""The two players without a model: the oracle, which runs a task's own solution, and idle hands.

They say what a score is worth: no policy does better than the oracle, and one that does no better
than doing nothing has learned nothing. They play in the same environments as a policy and leave
the same records, with turns that hold no ids, so they cannot be trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import Action, ActionKind, StopReason, Task, Trajectory, Turn
from rollout.arm import EvalSummary, play_arm
from rollout.envs.shell import Environment
from rollout.episode import RewardFunction, turn_metrics
from rollout.flight import Attempt, OnProgress, ignore_progress, take_nothing_over
from rollout.seeds import EPISODE_TURN, eval_seed
from rollout.settings import EpisodeSettings

# The oracle takes milliseconds an episode and a process each; beyond this many the processes wait
# for a core, and their time limits with them.
_AT_ONCE = 16


class ReferenceArm(StrEnum):
    """The arms that need no model. The value stands for the adapter's hash in their records."""

    ORACLE = "oracle"
    DO_NOTHING = "do-nothing"


def oracle_commands(task: Task) -> tuple[str, ...]:
    """The commands that solve the task. Raises `BadInput` where it has none."""
    commands = task.info.get("oracle")
    if not isinstance(commands, list) or not all(isinstance(c, str) for c in commands):
        raise BadInput(
            f"task {task.task_id}: info.oracle must be a list of commands, found {commands!r:.60}"
        )
    return tuple(commands)


async def play_oracle(
    task: Task,
    *,
    environment: Environment,
    settings: EpisodeSettings,
    reward: RewardFunction,
    clock: Callable[[], float] = time.monotonic,
) -> Trajectory:
    """Run the task's own solution, a command a turn, and grade what is left."""
    commands = oracle_commands(task)
    return await _play(ReferenceArm.ORACLE, commands, task, environment, settings, reward, clock)


async def play_nothing(
    task: Task,
    *,
    environment: Environment,
    settings: EpisodeSettings,
    reward: RewardFunction,
    clock: Callable[[], float] = time.monotonic,
) -> Trajectory:
    """Grade the workspace as it was set up."""
    return await _play(ReferenceArm.DO_NOTHING, (), task, environment, settings, reward, clock)


async def evaluate_reference(
    arm: ReferenceArm,
    tasks: Sequence[Task],
    *,
    environments: Callable[[str], Environment],
    settings: EpisodeSettings,
    reward: RewardFunction,
    evals: Path,
    samples: int = 1,
    on_progress: OnProgress = ignore_progress,
) -> EvalSummary:
    """One of the two on every task, with the files and the summary of any arm.

    samples: attempts at each task. They do not differ; other arms have as many.
    """
    play_one = play_oracle if arm is ReferenceArm.ORACLE else play_nothing

    async def play(attempt: Attempt, on_turn: Callable[[Turn], None]) -> Trajectory:
        environment = environments(attempt.task.env)
        try:
            played = await play_one(
                attempt.task, environment=environment, settings=settings, reward=reward
            )
            return replace(played, k=attempt.k)
        finally:
            await environment.close()

    return await play_arm(
        arm.value,
        arm.value,
        tasks,
        replace(settings, concurrency=min(settings.concurrency or _AT_ONCE, _AT_ONCE)),
        play,
        take_nothing_over,
        evals=evals,
        samples=samples,
        on_progress=on_progress,
    )


async def _play(
    arm: ReferenceArm,
    commands: Sequence[str],
    task: Task,
    environment: Environment,
    settings: EpisodeSettings,
    reward: RewardFunction,
    clock: Callable[[], float],
) -> Trajectory:
    opened = clock()
    await environment.reset(task)
    turns: list[Turn] = []
    for command in commands:
        began = clock()
        step = await environment.step(command)
        turns.append(
            Turn(
                prompt_ids=(),
                completion_ids=(),
                logprobs=(),
                text=f"```bash\n{command}\n```",
                action=Action(ActionKind.RUN, command),
                observation=step.observation,
                exit_code=step.exit_code,
                reward=step.reward,
                finish_reason="stop",
                policy_version=arm.value,
                seed=eval_seed(task.task_id, 0, len(turns)),
                seconds=clock() - began,
            )
        )
    grade = await environment.grade()
    return Trajectory(
        task_id=task.task_id,
        k=0,
        seed=eval_seed(task.task_id, 0, EPISODE_TURN),
        adapter_sha=arm.value,
        sampling=settings.sampling,
        turns=tuple(turns),
        stop_reason=StopReason.TASK_COMPLETE,
        grade=grade,
        # An oracle may take more commands than a policy is allowed turns: the dearest episode.
        reward=reward(grade, min(len(turns), settings.max_turns)),
        metrics={
            **turn_metrics(turns),
            "sampling_seconds": 0.0,
            "command_seconds": sum(t.seconds for t in turns),
            "seconds": clock() - opened,
        },
    )
