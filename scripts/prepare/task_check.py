"""`grpo tasks check`: finds tasks that would spoil a night, from the file or by playing it.

`rollout.tasks` finds unplayable tasks from their text. This module compares the seed with the
sandbox's limits, and with `--play` plays do-nothing and the oracle: a task that doing nothing
passes, or that its own solution does not pass, teaches nothing and shows only in the morning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from fieldkit.records import ActionKind, Task, Trajectory
from rollout.envs.configured import oracle_of
from rollout.envs.registry import environment_of
from rollout.sandbox.command import SandboxSettings
from rollout.tasks import TaskProblem
from rollout.yardsticks import DO_NOTHING, ORACLE, has_oracle, oracle_replies
from scripts.base.display import Progress
from scripts.prepare.task_sets import play_yardstick, why_unsolved
from scripts.run.config import RunConfig


def misfits(path: Path, tasks: Mapping[int, Task], sandbox: SandboxSettings) -> list[TaskProblem]:
    """The tasks, by line, whose seed the sandbox cannot hold."""
    return [
        TaskProblem(f"{path}:{line}", task.task_id, reason)
        for line, task in tasks.items()
        for reason in environment_of(task).fits(task, sandbox)
    ]


_ERROR = str({"error": ""})[:-3]
"""How the answer of a tool that raised begins."""


def _why_not(task: Task, played: Trajectory) -> str:
    """Why an oracle's episode did not pass: what it missed, and of a run's environment its function
    and the first of its calls that failed. Each reply of such an oracle is a call but the last."""
    missed, use = why_unsolved(played.grade), oracle_of(task.env)
    if not use:
        return missed
    missed += f"; oracle = {use}"
    n_calls = len(oracle_replies(task)) - 1
    for number, turn in enumerate(played.turns[:n_calls], 1):
        if turn.action.kind is not ActionKind.RUN:
            return f"{missed}: call {number}, {turn.text:.200}: there is no such tool"
        if (turn.observation or "").startswith(_ERROR):
            return f"{missed}: call {number}, {turn.text:.200}: {turn.observation:.200}"
    return missed


def play(
    path: Path,
    tasks: Mapping[int, Task],
    scratch: Path,
    progress: Progress,
    under: RunConfig | None = None,
) -> tuple[list[TaskProblem], str]:
    """Play do-nothing on every task, and the oracle if there is one; return the tasks with a wrong
    result, and one line that sums up both. under: the run whose limits apply; None: the defaults.
    Raises `Unavailable` without a sandbox."""
    solved = {line: task for line, task in tasks.items() if has_oracle(task)}
    problems = []
    n_passed = {}
    with asyncio.Runner() as runner:  # coroutines of an environment may keep what is of one loop
        for name, played in ((DO_NOTHING, tasks), (ORACLE, solved)):
            trajectories = play_yardstick(
                name, list(played.values()), scratch, name, progress, under, run=runner.run
            )
            for line, trajectory in zip(played, trajectories, strict=True):
                passed, why = trajectory.grade.passed, ""
                if name == DO_NOTHING and passed:
                    why = "doing nothing passes it"
                elif name == ORACLE and not passed:
                    why = f"its oracle does not pass ({_why_not(played[line], trajectory)})"
                if why:
                    problems.append(TaskProblem(f"{path}:{line}", trajectory.task_id, why))
            n_passed[name] = sum(t.grade.passed for t in trajectories)
    said = f"do-nothing passes {n_passed[DO_NOTHING]} of {len(tasks)}, "
    said += f"the oracle {n_passed[ORACLE]} of {len(solved)}"
    without = len(tasks) - len(solved)
    return problems, said + (f"; {without} tasks have no oracle" if without else "")
