"""One object of an environment's class, and one episode with it, for the check.

Everything runs in the calling thread, whose stack tells a watching process the line that hangs.
Before each call into the environment `tell` gets a line that names the call. A tool may raise,
because a policy gets the error as its observation; if a constructor, `reset` or a reward raises,
that is an error with file and line.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.registry import nearest
from rollout.envs.base import Message
from rollout.envs.in_thread import SIGNAL_SET, line_of, sets_signal
from rollout.envs.tool_calls import TOOL_FORMS, ToolCall, name_of
from rollout.envs.tool_world import as_shown, assistant, messages_of, with_text
from rollout.envs.tool_yardsticks import random_call
from rollout.envs.trl_class import answer_text, attributes_of, is_over
from rollout.envs.user_code import place_of
from rollout.generators import seed_generators
from scripts.environments.contract import Finding, Level, schemas_of
from scripts.environments.end_attribute import flags_of

Call = tuple[str, Mapping[str, Any]]
Row = Mapping[str, Any]
Choose = Callable[[int, str], Call | None]
"""Gives the next call, from the number of calls so far and all that was shown; None: the policy
stops."""
Judge = Callable[[Any, "Played", Row], Awaitable[Sequence[RewardPart]]]
"""Gives the reward's parts of the instance that was played."""


class Broken(Exception):
    """The environment itself failed; `finding` has the place."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass
class Played:
    """One episode: its calls, its observations and its reward."""

    seed: int
    prompt: Sequence[Message] = ()
    """What the episode begins with."""
    calls: list[Call] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    """One line for each time that a tool raised."""
    failed: str = ""
    """The first call that raised, and what it said."""
    drew: str = ""
    """The first tool that drew from the generators of the process."""
    parts: tuple[RewardPart, ...] = ()
    completion: list[Message] = field(default_factory=list)
    """The calls and their answers as messages, for reward functions."""
    flags: list[Mapping[str, bool]] = field(default_factory=list)
    """The environment's boolean attributes after `reset` and after every call; empty where `ends`
    is set."""
    reset_s: float = 0.0
    call_s: list[float] = field(default_factory=list)

    @property
    def reward(self) -> float | None:
        """Σ weight·value over the parts that apply; None if none applies."""
        return Grade((), self.parts).reward

    @property
    def worth(self) -> dict[str, float | None]:
        """The parts' values by name."""
        return {part.name: part.value for part in self.parts}

    @property
    def opening(self) -> str:
        """The prompt as one text."""
        return "\n".join(message["content"] for message in self.prompt)

    @property
    def shown(self) -> str:
        """All text that a policy has read."""
        return "\n".join((self.opening, *self.said))


@dataclass(frozen=True)
class Trials:
    """The episodes to play."""

    kind: type
    judge: Judge
    rows: Sequence[Row]
    pays: bool = True
    """Whether anything gives a reward."""
    config: Mapping[str, Any] = field(default_factory=dict)
    ends: str = ""
    """The attribute that is true once the episode is over."""
    passed: Callable[[Sequence[RewardPart]], bool] | None = None
    """Whether a reward's parts are a pass; None if no condition is declared."""
    episodes: int = 32
    turns: int = 15
    seconds: float = 60.0
    """The time after which no further random episode begins."""
    perfect: Sequence[Call] | None = None
    """The calls that solve the first row at seed 0."""
    oracle: str = ""
    """The function that gave these calls, `FILE:FUNCTION`; empty if they were given as calls."""
    oracle_place: str = ""
    """file:line of this function."""


class Instance:
    """One object of the class, and the calls on it. It draws as if no other one did."""

    def __init__(self, trials: Trials, tell: Callable[[str], None]) -> None:
        kind, config = trials.kind, trials.config
        self._judge, self._ends, self._tell = trials.judge, trials.ends, tell
        self._oracle, self._oracle_place = trials.oracle, trials.oracle_place
        self.schemas, self._attributes = schemas_of(kind), attributes_of(kind)
        self._drawn = _generators()
        tell(f"{kind.__name__}()")
        with Blamed(f"{kind.__name__}()", inspect.getattr_static(kind, "__init__")):
            self.env = kind()
            if config:
                self._finish(self.env.configure(**config))

    def begin(self, row: Row, seed: int) -> Played:
        """Reset it. Raises `Broken`."""
        self._tell(f"reset, seed {seed}")
        seed_generators(seed)
        began = time.perf_counter()
        with Blamed("reset", self.env.reset):
            said = self._finish(self.env.reset(**row))
        if said is not None and not isinstance(said, str):
            text = (
                f"reset returned {type(said).__name__}; a text that the prompt ends with, or None"
            )
            raise Broken(Finding(Level.ERROR, place_of(self.env.reset), text))
        played = Played(seed, reset_s=time.perf_counter() - began)
        try:
            played.prompt = with_text(messages_of(row.get("prompt", ""), "the row"), said)
        except BadInput as e:
            raise Broken(Finding(Level.ERROR, "", str(e))) from e
        if not played.opening.strip():
            text = "neither the row nor reset() gives a prompt: have reset return it, or give rows"
            raise Broken(Finding(Level.ERROR, place_of(self.env.reset), text))
        self._drawn = _generators()
        self._note_flags(played)
        return played

    def call(self, played: Played, name: str, arguments: Mapping[str, Any]) -> None:
        """Call a tool and record its answer."""
        shown = f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"[:200]
        self._tell(shown)
        which = f"call {len(played.calls) + 1}, {shown}"
        _draw_on(before := self._drawn)
        began = time.perf_counter()
        tool = self._tool(name, which)
        try:
            said = self._said(tool, self._finish(tool(**arguments)))
        except Broken:
            raise
        except Exception as e:  # any other is the policy's observation
            if sets_signal(e):
                text = f"tool {name}: {SIGNAL_SET}"
                raise Broken(Finding(Level.ERROR, place_of(tool), text)) from e
            played.raised.append(
                f"{_raised_at(e, tool)}: tool {name} raised {type(e).__name__}: {e}"
            )
            played.failed = played.failed or f"{which}: {type(e).__name__}: {e}"
            said = str({"error": str(e)})
        played.call_s.append(time.perf_counter() - began)
        self._drawn = _generators()
        if self._drawn != before:
            played.drew = played.drew or name
        played.calls.append((name, arguments))
        played.said.append(said)
        call = ToolCall(name, arguments)
        written = {"content": TOOL_FORMS["text"].write(call, self.schemas)}
        played.completion.append(assistant(written, (call,)))
        played.completion.append({"role": "tool", "name": name, "content": said})
        self._note_flags(played)

    def _tool(self, name: str, which: str) -> Callable[..., Any]:
        """Raises `Broken` for a name that a solution has and the class has not. which: the call."""
        known = [*map(name_of, self.schemas)]
        if name in known:
            found: Callable[..., Any] = getattr(self.env, self._attributes.get(name, name))
            return found
        near = nearest(name, known)
        text = f"there is no tool {name!r}; " + (
            f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
        )
        if self._oracle:
            text = f"oracle = {self._oracle}: {which}: {text}"
        where = self._oracle_place or place_of(type(self.env))
        raise Broken(Finding(Level.ERROR, where, text))

    def _said(self, tool: Callable[..., Any], answer: Any) -> str:
        """A tool's answer as a run shows it. Raises `ToolFailure`, and `Broken` for an image."""
        try:
            return as_shown(answer_text(answer, f"tool {tool.__name__}"))
        except BadInput as e:
            raise Broken(Finding(Level.ERROR, place_of(tool), str(e))) from e

    def _note_flags(self, played: Played) -> None:
        if not self._ends:
            played.flags.append(flags_of(self.env))

    @property
    def done(self) -> bool:
        """Whether the environment has ended the episode. Raises `Broken`."""
        if not self._ends:
            return False
        try:
            return is_over(self.env, self._ends)
        except AttributeError as e:
            where = place_of(type(self.env))
            raise Broken(Finding(Level.ERROR, where, f"ends = {self._ends!r}: {e}")) from None
        except Exception as e:
            text = f"ends = {self._ends!r}: it raised {type(e).__name__}: {e}"
            raise Broken(Finding(Level.ERROR, _raised_at(e, type(self.env)), text)) from e

    def end(self, played: Played, row: Row) -> Played:
        """Compute the reward. Raises `Broken`."""
        self._tell("the reward")
        pay = getattr(self.env, "get_reward", type(self.env))
        with Blamed("the reward", pay):
            played.parts = tuple(self._finish(self._judge(self.env, played, row)))
        return played

    def play(self, row: Row, seed: int, choose: Choose, most: int) -> Played:
        """One episode of at most `most` calls. Raises `Broken`."""
        played = self.begin(row, seed)
        while len(played.calls) < most and not self.done:
            call = choose(len(played.calls), played.shown)
            if call is None:
                break
            self.call(played, *call)
        return self.end(played, row)

    def _finish(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value

        async def wait() -> Any:
            return await value

        return _runner().run(wait())


@functools.cache
def _runner() -> asyncio.Runner:
    """One event loop for all instances: what a module holds for its coroutines, such as a client,
    works in no other."""
    return asyncio.Runner()


def _generators() -> bytes:
    """The state of Python's generator, and of NumPy's where it is imported."""
    numpy = sys.modules.get("numpy")
    return pickle.dumps((random.getstate(), numpy and numpy.random.get_state()))


def _draw_on(state: bytes) -> None:
    """Continue from a state that `_generators` gave."""
    of_python, of_numpy = pickle.loads(state)
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)


class Blamed:
    """Turns an exception of the environment into `Broken`, with the line that raised."""

    def __init__(self, what: str, thing: Any) -> None:
        self._what, self._thing = what, thing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (BadInput, Unavailable)):  # it names the cause and the place
            cause = error.__cause__
            where = (cause and _raised_at(cause, self._thing)) or place_of(self._thing)
            raise Broken(Finding(Level.ERROR, where, str(error))) from error
        if isinstance(error, Exception) and not isinstance(error, Broken):
            where = _raised_at(error, self._thing)
            text = f"{self._what} raised {type(error).__name__}: {error}"
            raise Broken(Finding(Level.ERROR, where, text)) from error


def _raised_at(error: BaseException, thing: Any) -> str:
    """As `line_of`; empty if it is not known."""
    return line_of(error, thing).removeprefix("?")


# -- policies --------------------------------------------------------------------------------------


def chance(schemas: Sequence[Mapping[str, Any]], seed: int) -> Choose:
    """A random policy."""
    rng = random.Random(f"random/{seed}")
    return lambda done, shown: random_call(schemas, shown, rng)


def recited(calls: Sequence[Call]) -> Choose:
    """A policy that makes these calls and then stops."""
    return lambda done, shown: calls[done] if done < len(calls) else None
