"""The environment "clawgym": a Linux shell over a few seed files, graded by file assertions.

Each turn the reply's command runs in a sandbox, until a reply says that the task is done. The same
code plays training, evaluation, demonstrations and yardsticks. An observation depends only on the
command and the workspace; it contains no timings and no paths of the host.
"""

from __future__ import annotations

import asyncio

from fieldkit.errors import Unavailable
from fieldkit.eval.assertions import TreeGrader, parse_assertions, parse_seed
from fieldkit.eval.grade import Grade
from fieldkit.records import ActionKind, StopReason, Task, Turn
from reward.shaping import paid_rate
from rollout.envs.base import Environment, Message, MissingOracle, Opening, Reply, Site, Step
from rollout.envs.shell_protocol import NO_ACTION_OBSERVATION, PROTOCOLS, block
from rollout.envs.shell_random import random_reply
from rollout.envs.shell_tasks import (
    published_task,
    shell_doubts,
    shell_faults,
    shell_fits,
    shell_marks,
)
from rollout.sandbox.base import make_sandbox
from rollout.sandbox.command import TIMED_OUT_CODE, CommandResult, SandboxSettings

SHELL_ENV = "clawgym"
"""The value of `env` in tasks that have a workspace and file assertions in ClawGym's schema."""

SYSTEM_PROMPT = (
    "You work in a Linux shell. Each turn, write one ```bash block. "
    "When the task is done, write TASK_COMPLETE."
)


def shell_opening(task: Task) -> Opening:
    """The system text and the task's prompt."""
    return Opening(
        ({"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.prompt})
    )


class ShellWorld:
    """A workspace in a sandbox, the reader of replies, and the grader of the workspace.

    A step's reward is the change of the rate of paid assertions that its command made, so that the
    turn can be credited with it. The policy does not see it.
    """

    def __init__(self, site: Site) -> None:
        self._settings = site.sandbox
        self._parse = PROTOCOLS.named(site.protocol)
        self._sandbox = make_sandbox(site.sandbox, site.scratch)
        self._grader: TreeGrader | None = None
        self._pay_implied = site.pay_implied
        self._rate = 0.0

    async def reset(self, task: Task, seed: int) -> Opening:
        """Make a fresh workspace. The seed has no effect."""
        where = f"task {task.task_id}"
        files = parse_seed(task.info, where)
        self._grader = TreeGrader(parse_assertions(task.info, where), files)
        await self._sandbox.open(files)
        self._rate = await self._paid_rate()
        return shell_opening(task)

    async def step(self, reply: Reply) -> Step:
        """Run the reply's command, if it has one. A reply that says "done" may have a command
        too."""
        action = self._parse(reply.text)
        stop = StopReason.TASK_COMPLETE if action.kind is ActionKind.DONE else None
        if not action.command:
            told = () if stop else (_told(NO_ACTION_OBSERVATION),)
            return Step(action, told, stop=stop)
        result = await self._sandbox.run(action.command)
        before, self._rate = self._rate, await self._paid_rate()
        return Step(
            action,
            (_told(observe(result, self._settings)),),
            calls=1,
            failed_calls=int(result.exit_code != 0),
            exit_code=result.exit_code,
            reward=self._rate - before,
            stop=stop,
        )

    async def grade(self) -> Grade:
        if self._grader is None:
            raise RuntimeError("grade before reset")
        try:
            # In a thread: a regular expression may take its whole time limit.
            return await asyncio.to_thread(self._grader.grade, self._sandbox.workspace)
        except OSError as e:
            raise Unavailable(f"the workspace cannot be graded: {e}") from e

    async def _paid_rate(self) -> float:
        return paid_rate(await self.grade(), self._pay_implied)

    async def close(self) -> None:
        await self._sandbox.close()


def _told(text: str) -> Message:
    return {"role": "user", "content": text}


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


def oracle_replies(task: Task) -> tuple[str, ...]:
    """The commands that solve the task, one reply each. Raises `MissingOracle` if there are
    none."""
    commands = task.info.get("oracle")
    if not isinstance(commands, list) or not all(isinstance(c, str) for c in commands):
        raise MissingOracle(
            f"task {task.task_id}: info.oracle must be a list of commands, found {commands!r:.60}"
        )
    return tuple(map(block, commands))


def _timed_out(turn: Turn) -> bool:
    return turn.exit_code == TIMED_OUT_CODE


SHELL = Environment(
    make=ShellWorld,
    opening=shell_opening,
    faults=shell_faults,
    doubts=shell_doubts,
    fits=shell_fits,
    published=lambda line: published_task(line, SHELL_ENV),
    marks=shell_marks,
    oracle=oracle_replies,
    random_reply=random_reply,
    timed_out=_timed_out,
)
