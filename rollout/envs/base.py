"""The interface of a world: everything that an episode knows about where it is played.

A world gives messages, takes replies, and grades the result. The world decides how a reply is read,
what it does and when a task is over; the episode decides sampling, limits and records. Nothing here
depends on a shell, a tool or a game.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import Grade
from fieldkit.records import Action, StopReason, Task, Trajectory, Turn
from rollout.sandbox.command import SandboxSettings

Message = Mapping[str, Any]
"""One message as chat templates take it: `role`, `content` (text), and further keys that a role
needs."""


@dataclass(frozen=True)
class Opening:
    """What an episode begins with."""

    messages: tuple[Message, ...]
    """The conversation before the first reply."""
    tools: tuple[Mapping[str, Any], ...] | None = None
    """JSON schemas of the tools that the chat template gets; None if it gets none."""


@dataclass(frozen=True)
class Reply:
    """What a policy said."""

    text: str
    finish_reason: str = "stop"
    """"length" if it was cut off at the token limit of a turn, "stop" if it ended by itself."""


@dataclass(frozen=True)
class Step:
    """What a world answers to one reply."""

    action: Action
    """How the world read the reply."""
    observation: tuple[Message, ...] = ()
    """What the policy is shown next; empty only if `stop` is set and there is nothing to show. A
    last observation with `stop` is kept in the record but is in no prompt."""
    calls: int = 0
    """How many commands or tools the reply ran."""
    failed_calls: int = 0
    """How many of them failed."""
    exit_code: int | None = None
    """Of a command; None if none ran or the world has no commands."""
    reward: float | None = None
    """What the turn added to the episode's reward by itself; None if the world does not say."""
    stop: StopReason | None = None
    """TASK_COMPLETE if the policy said that it is done, ENV_DONE if the world ended the episode,
    REPLY_CUT if a cut reply left nothing to do, TIME_LIMIT with `late`, None if it continues. The
    other reasons are limits, which the episode applies."""
    late: str = ""
    """Which call of the reply had no answer in time; empty if all had. The world is not used again,
    and its grade has no reward: nobody can ask it what the attempt is worth."""

    @property
    def said(self) -> str | None:
        """The observation as one text, for the record; None if it is empty."""
        return "\n".join(m["content"] for m in self.observation) if self.observation else None


class Late(Unavailable):
    """A call of an environment took longer than it may."""


class MissingOracle(BadInput):
    """A task has no known solution."""


class World(Protocol):
    """One episode at a time: reset, any number of steps, grade, close.

    Whatever a policy does wrong shows in a `Step` or in the grade. `Unavailable` means that the
    world itself failed; the episode is then played again.
    """

    async def reset(self, task: Task, seed: int) -> Opening:
        """Set the task up afresh. Equal seeds give equal worlds. Raises `BadInput` for a malformed
        task, and `Unavailable`."""

    async def step(self, reply: Reply) -> Step:
        """Read a reply and do what it asks. Raises `Unavailable`."""

    async def grade(self) -> Grade:
        """Grade the present state. A part that is not an assertion is a result of its own; `passed`
        means that all of them hold. Raises `Unavailable`."""

    async def close(self) -> None:
        """Release all resources. May be called again, and before `reset`."""


@dataclass(frozen=True)
class Site:
    """What a run and its machine provide to their worlds."""

    sandbox: SandboxSettings
    """Limits on what a policy's command may use."""
    scratch: Path
    """Where a world may keep files while it is open."""
    protocol: str = "sentinel"
    """How a reply is read, for worlds that have several ways."""
    tool_form: str = "text"
    """How tool calls are written: a name in `rollout.envs.tool_calls.TOOL_FORMS`."""
    pay_implied: bool = True
    """`reward.pay_implied`: which assertions count towards a step's progress."""
    ledger: Path | None = None
    """The ledger of processes that a world starts; None: a file in `scratch`."""
    say: Callable[[str], None] = lambda line: None
    """Called with each line that a person should read."""


async def _no_limit(site: Site, task: Task, wanted: int) -> int | None:
    return None


@dataclass(frozen=True)
class Environment:
    """A kind of world, as `Task.env` names it: how to make one, and what is known without making
    one.

    Only `make` is required; every other field is an optional ability.
    """

    make: Callable[[Site], World]
    """Makes a closed world. Raises `Unavailable` if the machine lacks something that it needs."""
    opening: Callable[[Task], Opening] | None = None
    """What every episode of a task begins with. None if only `reset` knows it: an episode that an
    earlier process stored is then taken over without a look at its first prompt."""
    faults: Callable[[Task, str], Sequence[str]] = lambda task, where: ()
    """The faults of a task's `info`, as reasons. May raise `BadInput` that begins with the given
    place (file:line)."""
    doubts: Callable[[Task], Sequence[str]] = lambda task: ()
    """Warnings about a valid task, as reasons; it can still be played."""
    fits: Callable[[Task, SandboxSettings], Sequence[str]] = lambda task, settings: ()
    """What a sandbox with these settings cannot hold of a valid task, as reasons."""
    published: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda line: None
    """A line of a task file as this world's author publishes it, as the fields of a `Task`; None
    for a line in another format."""
    from_rows: bool = False
    """Whether tasks are rows of a dataset. Two rows are the same task only if every column is
    equal, and the prompt may be empty because `reset` gives it."""
    marks: Callable[[Task], Sequence[tuple[str, str]]] = lambda task: ()
    """What two tasks of different splits may not share, besides id and prompt: (name, value)."""
    tools: Callable[[Task], Sequence[Mapping[str, Any]]] = lambda task: ()
    """The JSON schemas of a task's tools, as far as they are known: some worlds show them when an
    episode has begun. Calls are written for their reader by them."""
    oracle: Callable[[Task], Sequence[str]] | None = None
    """The replies that solve a task, in order. Raises `MissingOracle` for a task without a
    solution, and `BadInput` if the function that gives it fails."""
    random_reply: Callable[[Task, str, random.Random], str] | None = None
    """A reply of a random policy, drawn from the text that it was shown so far and never from the
    grader."""
    of_group: Callable[[Task, Sequence[Trajectory]], Awaitable[Sequence[Grade]]] | None = None
    """The grades of a task's attempts, in order, with the parts that need all attempts for
    comparison. Called when the last attempt has ended and every world is closed. Raises as
    `World.grade`."""
    capacity: Callable[[Site, Task, int], Awaitable[int | None]] = _no_limit
    """How many of so many episodes of a task it can play at once; None if it has no limit of its
    own. Raises as `World.reset`."""
    timed_out: Callable[[Turn], bool] = lambda turn: False
    """Whether a turn's command or call was ended by its time limit. The episode is played again if
    the machine was suspended meanwhile."""
