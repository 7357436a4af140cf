"""The door to a world: what an episode knows of where it is played, and all that it knows.

A world gives messages, is answered with replies, and grades what they left. How a reply is read,
what it does and when a task is over is the world's own business; sampling, limits and records are
the episode's. Nothing here knows a shell, a tool or a game.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.records import Action, StopReason, Task, Trajectory, Turn
from rollout.sandbox.command import SandboxSettings

Message = Mapping[str, Any]
"""One message as chat templates take it: `role`, `content` (text), and what else a role needs."""


@dataclass(frozen=True)
class Opening:
    """What an episode begins with."""

    messages: tuple[Message, ...]
    """The conversation before the first reply."""
    tools: tuple[Mapping[str, Any], ...] | None = None
    """JSON schemas of the tools that the chat template is told of; None: it is told of none."""


@dataclass(frozen=True)
class Reply:
    """What a policy said."""

    text: str
    finish_reason: str = "stop"
    """"length" where it was cut off at the limit of a turn, "stop" where it ended by itself."""


@dataclass(frozen=True)
class Step:
    """What a world answers to one reply."""

    action: Action
    """What the reply was read as."""
    observation: tuple[Message, ...] = ()
    """What the policy is shown next; empty only where `stop` is set and there was nothing to say.
    A world that ended the episode may still say what it saw: it is kept, and no prompt holds it."""
    calls: int = 0
    """How many commands or tools the reply ran."""
    failed_calls: int = 0
    """How many of them failed."""
    exit_code: int | None = None
    """Of a command; None where none ran, and in worlds that have none."""
    parts: Mapping[str, float] | None = None
    """The world's own reward for this turn, part by part; None where it has none."""
    stop: StopReason | None = None
    """TASK_COMPLETE where the policy said that it is done, ENV_DONE where the world ended the
    episode, None where it goes on. The other reasons are limits, which are the episode's."""

    @property
    def reward(self) -> float | None:
        """The parts together."""
        return None if self.parts is None else sum(self.parts.values())

    @property
    def said(self) -> str | None:
        """The observation as one text, for the record; None where nothing was said."""
        return "\n".join(m["content"] for m in self.observation) if self.observation else None


class MissingOracle(BadInput):
    """Nobody knows replies that solve a task."""


class World(Protocol):
    """One episode at a time: reset, any number of steps, grade, close.

    Whatever a policy does is a `Step` or a part of the grade that it does not get. `Unavailable`
    means that the world itself failed, and the episode is played again.
    """

    async def reset(self, task: Task, seed: int) -> Opening:
        """Set the task up afresh. Equal seeds give equal worlds. Raises `BadInput` for a malformed
        task, and `Unavailable`."""

    async def step(self, reply: Reply) -> Step:
        """Read a reply and do what it asks. Raises `Unavailable`."""

    async def grade(self) -> Grade:
        """Grade what is there now. A part that is no assertion is one result of its own; `passed`
        is all of them together. Raises `Unavailable`."""

    async def close(self) -> None:
        """Let go of everything. May be called again, and before `reset`."""


@dataclass(frozen=True)
class Site:
    """What a machine and a run give to their worlds."""

    sandbox: SandboxSettings
    """What a command of a policy may use."""
    scratch: Path
    """Where a world may keep files while it is open."""
    protocol: str = "sentinel"
    """How a reply is read, where a world knows several ways."""
    tool_form: str = "text"
    """How tool calls are written: a name in `rollout.envs.tool_calls.TOOL_FORMS`."""
    pay_implied: bool = True
    """`reward.pay_implied`: which assertions a step's progress counts."""
    ledger: Path | None = None
    """Where processes are entered that a world starts; None: a file in `scratch`."""
    say: Callable[[str], None] = lambda line: None
    """Told what a person should know, one line at a time."""


@dataclass(frozen=True)
class Environment:
    """A kind of world, as `Task.env` names it: how to make one, and what can be asked without one.

    Only `make` is needed; each of the others is something that a world may be able to do.
    """

    make: Callable[[Site], World]
    """A closed world; raises `Unavailable` where the machine lacks something that it needs."""
    opening: Callable[[Task], Opening] | None = None
    """What every episode of a task begins with. None where only `reset` knows: an episode that an
    earlier start left is then played again, because nobody can tell whether it still counts."""
    faults: Callable[[Task, str], Sequence[str]] = lambda task, where: ()
    """What is wrong with a task's `info`, as reasons; may raise `BadInput` that begins with the
    given place (file:line)."""
    doubts: Callable[[Task], Sequence[str]] = lambda task: ()
    """What is unusual about a sound task, as reasons; it can be played all the same."""
    fits: Callable[[Task, SandboxSettings], Sequence[str]] = lambda task, settings: ()
    """What of a sound task a sandbox of these settings cannot hold, as reasons."""
    published: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda line: None
    """A line of a task file as this world's author publishes it, as the fields of a `Task`; None
    for a line in another format."""
    from_rows: bool = False
    """Whether tasks are rows of a dataset: the whole row tells one from another, and the prompt may
    be empty, because `reset` brings it."""
    marks: Callable[[Task], Sequence[tuple[str, str]]] = lambda task: ()
    """What two tasks of different splits may not share, beside id and prompt: (name, value)."""
    oracle: Callable[[Task], Sequence[str]] | None = None
    """The replies that solve a task, in order. Raises `MissingOracle` for a task without a
    solution, and `BadInput` for what gives it and is broken."""
    random_reply: Callable[[Task, str, random.Random], str] | None = None
    """A reply of a policy without skill: drawn from the text that it was shown so far, never from
    the grader."""
    of_group: Callable[[Task, Sequence[Trajectory]], Awaitable[Sequence[Grade]]] | None = None
    """The grades of a task's attempts with what only their comparison can tell, in order; asked
    when the last has ended and every world is closed. Raises as `World.grade`."""
    timed_out: Callable[[Turn], bool] = lambda turn: False
    """Whether what a turn asked for was ended because it took too long: played again where the
    time passed while this machine stood still."""
