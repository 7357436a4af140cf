"""One episode in a world of any style, for the check: its replies, its answers, its reward and its
times.

`instance` is the same for an object of a class, whose lines can be named.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fieldkit.errors import BadInput, FieldkitError, Unavailable
from fieldkit.eval.grade import Grade
from fieldkit.records import StopReason, Task
from rollout.envs.base import Environment, Message, Reply, Site, World
from rollout.sandbox.command import SandboxSettings

Choose = Callable[[Sequence[Message]], Awaitable[str | None]]
"""Gives the next reply to a conversation; None: the policy has no more."""


@dataclass
class WorldPlayed:
    """One episode: the replies, and what the world answered."""

    task: Task
    opening: tuple[Message, ...]
    replies: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    calls: int = 0
    failed: int = 0
    stop: StopReason | None = None
    grade: Grade = field(default_factory=lambda: Grade(()))
    reset_s: float = 0.0
    step_s: list[float] = field(default_factory=list)

    @property
    def opened(self) -> str:
        """What it began with, as one text."""
        return "\n".join(message["content"] for message in self.opening)

    @property
    def talk(self) -> list[Message]:
        """The conversation so far."""
        talk = list(self.opening)
        for reply, said in zip(self.replies, self.said, strict=True):
            talk += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
        return talk

    @property
    def worth(self) -> dict[str, float | None]:
        """The values of the reward's parts by name."""
        return {part.name: part.value for part in self.grade.rewards}


@contextmanager
def bare_site(say: Callable[[str], None]) -> Iterator[Site]:
    """A site for worlds in which no command of a policy runs. say: called with lines for a
    person. Its files are removed, except after an error, which may name a log among them."""
    scratch, kept = Path(tempfile.mkdtemp(prefix="grpo-env-")), False
    try:
        yield Site(SandboxSettings(), scratch, say=say)
    except FieldkitError:
        kept = (scratch / "log").is_dir()
        raise
    finally:
        if not kept:
            shutil.rmtree(scratch, ignore_errors=True)


async def play(world: World, task: Task, choose: Choose, most: int) -> WorldPlayed:
    """One episode of at most `most` replies. The world is closed, because a server may have no
    session for another one. Raises as `World`."""
    try:
        played = await begin(world, task)
        while played.stop is None and len(played.replies) < most:
            reply = await choose(played.talk)
            if reply is None:
                break
            await step(world, played, reply)
        played.grade = await world.grade()
    finally:
        await world.close()
    return played


async def begin(world: World, task: Task) -> WorldPlayed:
    """Reset the world."""
    began = time.perf_counter()
    opening = await world.reset(task, 0)
    return WorldPlayed(task, opening.messages, reset_s=time.perf_counter() - began)


async def step(world: World, played: WorldPlayed, reply: str) -> None:
    """Send one reply and record what comes back."""
    began = time.perf_counter()
    answer = await world.step(Reply(reply))
    if answer.late:
        raise Unavailable(answer.late)
    played.step_s.append(time.perf_counter() - began)
    played.replies.append(reply)
    played.said.append(answer.said or "")
    played.calls += answer.calls
    played.failed += answer.failed_calls
    played.stop = answer.stop


# -- policies --------------------------------------------------------------------------------------


def drawn(environment: Environment, task: Task, seed: int) -> Choose:
    """A random policy. Raises `BadInput` if the environment has none."""
    draw, rng = environment.random_reply, random.Random(f"random/{seed}")
    if draw is None:
        raise BadInput(f"task {task.task_id}: env {task.env!r} has no random replies")

    async def choose(talk: Sequence[Message]) -> str | None:
        return draw(task, "\n".join(m["content"] for m in talk), rng)

    return choose


def written(replies: Sequence[str]) -> Choose:
    """A policy that says these replies and then no more."""
    left = iter(replies)

    async def choose(talk: Sequence[Message]) -> str | None:
        return next(left, None)

    return choose
