"""Environments: what a policy acts in, and what grades what it leaves behind.

An environment owns its system text, sets up a task's workspace, answers commands, and grades. The
same code plays training, evaluation and demonstrations. An observation depends on the command and
the workspace only: no timings and no paths of the host get into it.
"""

from __future__ import annotations

import asyncio
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.assertions import AssertionGrader, parse_assertions, parse_seed
from fieldkit.eval.grade import Grade
from fieldkit.records import Task
from rollout.sandbox.base import make_sandbox
from rollout.sandbox.command import CommandResult, SandboxSettings

SYSTEM_PROMPTS = {
    "clawgym": "You work in a Linux shell. Each turn, write one ```bash block. "
    "When the task is done, write TASK_COMPLETE.",
}
"""The system text of each environment, by the name that tasks give."""


@dataclass(frozen=True)
class StepResult:
    """The environment's answer to one command.

    reward: the progress that this command made, None where the environment does not say.
    done: the environment ends the episode with this turn.
    """

    observation: str
    exit_code: int | None
    reward: float | None
    done: bool


class Environment(Protocol):
    """One episode at a time: reset, any number of steps, grade, close.

    Whatever a policy does is a `StepResult` or a failed assertion. `Unavailable` means that the
    environment itself failed, and the attempt must be played again.
    """

    async def reset(self, task: Task) -> None:
        """Set up a fresh workspace. Raises `BadInput` for a malformed task, and `Unavailable`."""

    async def step(self, command: str) -> StepResult:
        """Run one command. Raises `Unavailable`."""

    async def grade(self) -> Grade:
        """Grade the workspace as it is now. Raises `Unavailable`."""

    async def close(self) -> None:
        """Remove the workspace. May be called again, and before `reset`."""


class ClawGymEnvironment:
    """A Linux shell over a few seed files, graded by file assertions.

    A step's reward is the change of the assertion rate that its command made, so that a turn can be
    credited with it; the policy is not shown it.
    """

    def __init__(self, settings: SandboxSettings, scratch: Path) -> None:
        self._settings = settings
        self._sandbox = make_sandbox(settings, scratch)
        self._grader: AssertionGrader | None = None
        self._rate = 0.0

    async def reset(self, task: Task) -> None:
        where = f"task {task.task_id}"
        seed = parse_seed(task.info, where)
        self._grader = AssertionGrader(parse_assertions(task.info, where), seed)
        await self._sandbox.open(seed)
        self._rate = (await self.grade()).rate

    async def step(self, command: str) -> StepResult:
        result = await self._sandbox.run(command)
        before, self._rate = self._rate, (await self.grade()).rate
        observation = observe(result, self._settings)
        return StepResult(observation, result.exit_code, self._rate - before, False)

    async def grade(self) -> Grade:
        if self._grader is None:
            raise RuntimeError("grade before reset")
        try:
            # Off the event loop: a regular expression may take its whole time limit.
            return await asyncio.to_thread(self._grader.grade, self._sandbox.workspace)
        except OSError as e:
            raise Unavailable(f"the workspace cannot be graded: {e}") from e

    async def close(self) -> None:
        await self._sandbox.close()


def observe(result: CommandResult, settings: SandboxSettings) -> str:
    """A command's result as the policy is shown it."""
    lines = [result.output.rstrip("\n") or "(no output)"]
    if result.timed_out:
        lines.insert(0, f"[ended after {settings.command_seconds:g} s: time limit]")
    elif result.flooded:
        lines.insert(0, f"[ended after {settings.output_bytes} bytes of output]")
    elif result.exit_code != 0:
        lines.insert(0, f"[exit {result.exit_code}]")
    return "\n".join(lines)


def system_prompt(env: str) -> str:
    """The system text of environment `env`. Raises `BadInput` naming the known ones."""
    _check_known(env)
    return SYSTEM_PROMPTS[env]


def make_environment(env: str, settings: SandboxSettings, scratch: Path) -> Environment:
    """A new environment of kind `env`; workspaces on disk, where there are any, are in `scratch`.

    Raises `BadInput` naming the known kinds, and `Unavailable` where the sandbox lacks a program.
    """
    _check_known(env)
    return ClawGymEnvironment(settings, scratch)


def _check_known(env: str) -> None:
    if env not in SYSTEM_PROMPTS:
        near = difflib.get_close_matches(env, SYSTEM_PROMPTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"env {env!r} is unknown; known: {', '.join(SYSTEM_PROMPTS)}{hint}")
