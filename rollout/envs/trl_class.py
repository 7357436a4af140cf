"""Environments as TRL's `environment_factory` takes them, and its plain `tools`.

The contract is TRL's: a class without constructor arguments, whose instances are made once and
reset often; `reset(**row)` returns the text that follows the prompt; every other public method is a
tool, described by its type hints and docstring; `get_reward()` is a further reward. A function, or
a list of functions, is a set of tools without state. Methods may be coroutines.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import RewardPart
from fieldkit.files.atomic import sha256_text
from fieldkit.records import Task
from rollout.envs.base import Environment, Late, Message, Site
from rollout.envs.env_settings import EnvSettings
from rollout.envs.in_thread import PinnedThread, asked, in_thread
from rollout.envs.reward_functions import (
    OWN,
    OWN_PART,
    RewardFunction,
    checked,
    own_part,
    reward_functions,
)
from rollout.envs.tool_calls import Schema, ToolCall, name_of
from rollout.envs.tool_world import ToolFailure, ToolWorld, row_of
from rollout.envs.tool_yardsticks import random_replies
from rollout.envs.user_code import identity, load, place_of
from rollout.generators import DrawingFrom, generators, seed_generators

NO_TOOLS = frozenset(("reset", "configure", OWN))
"""Public methods that are not tools."""


@dataclass(frozen=True)
class Instance:
    """An object of the class (None for functions) and its thread."""

    thing: Any
    thread: PinnedThread


@dataclass(frozen=True)
class TrlCode:
    """A class, or functions, checked against the contract; shared by all episodes."""

    name: str
    """Of the environment, for messages."""
    make: Callable[[], Any] | None
    """The class; None for functions."""
    functions: Mapping[str, Callable[..., Any]]
    """The tools without state, by name."""
    attributes: Mapping[str, str]
    """The class's attribute that each of its tools is, by the tool's name."""
    schemas: tuple[Schema, ...]
    rewards: tuple[RewardFunction, ...]
    settings: EnvSettings
    coroutines: frozenset[str]
    """The tools that are coroutine functions."""
    idle: list[Instance] = field(default_factory=list)
    """Instances that no episode uses."""

    @property
    def where(self) -> str:
        return f"envs.{self.name}"

    async def take(self) -> Instance:
        """An idle instance or a new one. Raises as `asked` where it cannot be made."""
        if self.idle:
            return self.idle.pop()
        thread, make = PinnedThread(self.where), self.make
        if make is None:
            return Instance(None, thread)
        seconds, config = self.settings.call_seconds, self.settings.config
        thing = await asked(make, {}, seconds, f"{self.where}: the constructor", thread)
        if config:
            await asked(thing.configure, config, seconds, f"{self.where}: configure", thread)
        return Instance(thing, thread)


def trl_environment(name: str, settings: EnvSettings, root: Path) -> Environment:
    """The environment that `[envs.NAME]` describes. Raises `BadInput` that names the key and the
    violated part of the contract."""
    where = f"envs.{name}"
    if settings.python:
        raise BadInput(
            f"{where}.python: a class runs in .venv, so install what it needs there"
            " (`scripts/setup/uv.sh pip install --python .venv/bin/python PACKAGE`), or have an"
            " OpenEnv server run it: those and verifiers environments have a virtual environment"
            " of their own"
        )
    found = load(settings.use, root, where)
    rewards = reward_functions(settings.rewards, root, where, own=own_part(found))
    if inspect.isclass(found):
        code = _of_class(name, found, rewards, settings)
    else:
        code = _of_functions(name, found, rewards, settings)
    _check_rewards(code, found)
    _check_fallback(code)

    def make(site: Site) -> ToolWorld:
        return ToolWorld(
            site, TrlToolbox(code), settings.passes, code.coroutines, settings.fallback
        )

    return Environment(
        make=make,
        faults=lambda task, where: _row_faults(found, rewards, task),
        tools=lambda task: code.schemas,
        random_reply=random_replies(code.schemas),
    )


def trl_identity(name: str, settings: EnvSettings, root: Path) -> str:
    """A hash of the class or the functions, and of the reward functions. Raises as
    `trl_environment`."""
    uses = [settings.use, *(use for use in settings.rewards if use != OWN)]
    return sha256_text("\n".join(identity(use, root, f"envs.{name}") for use in uses))


def _of_class(
    name: str, cls: type, rewards: tuple[RewardFunction, ...], settings: EnvSettings
) -> TrlCode:
    where = f"envs.{name}"
    if not callable(getattr(cls, "reset", None)):
        raise BadInput(f"{where}: {_place(cls)}: {cls.__name__} has no method reset")
    if settings.config and not callable(getattr(cls, "configure", None)):
        raise BadInput(f"{where}.config: {_place(cls)}: {cls.__name__} has no method configure")
    _check_constructor(cls, where)
    tools = list(tools_of(cls).values())
    if not tools:
        raise BadInput(f"{where}: {_place(cls)}: {cls.__name__} has no public method to be a tool")
    schemas = tuple(_schema(tool, where) for tool in tools)
    own = attributes_of(cls)
    return TrlCode(name, cls, {}, own, schemas, rewards, settings, _coroutines(tools))


def _of_functions(
    name: str, found: Any, rewards: tuple[RewardFunction, ...], settings: EnvSettings
) -> TrlCode:
    where = f"envs.{name}"
    tools = list(found) if isinstance(found, list | tuple) else [found]
    if not tools or not all(inspect.isroutine(t) for t in tools):
        raise BadInput(f"{where}: {settings.use} is no class, no function and no list of functions")
    if settings.config:
        raise BadInput(f"{where}.config: {settings.use} are functions, which take none")
    schemas = tuple(_schema(tool, where) for tool in tools)
    by_name = {t.__name__: t for t in tools}
    return TrlCode(name, None, by_name, {}, schemas, rewards, settings, _coroutines(tools))


def tools_of(cls: type) -> dict[str, Callable[..., Any]]:
    """The class's tools by attribute, in the order in which a policy sees them: alphabetical, as in
    TRL. A static method is one; a class method is none, because it is no function of the class."""
    found = inspect.getmembers(cls, inspect.isfunction)
    return {n: f for n, f in found if not n.startswith("_") and n not in NO_TOOLS}


def attributes_of(cls: type) -> dict[str, str]:
    """The attribute that each of the class's tools is, by the name under which a policy calls it,
    which is the function's own. They differ for `double = a_function` in the body of the class. Of
    two tools of one name the last is called, as in TRL."""
    return {tool.__name__: attribute for attribute, tool in tools_of(cls).items()}


def _short(arguments: object) -> str:
    """What a policy asked for, as much of it as a message has room for."""
    return textwrap.shorten(repr(arguments), 200, placeholder=" …")


def needed(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """The names of the required parameters."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in starred]


def _coroutines(tools: Sequence[Callable[..., Any]]) -> frozenset[str]:
    return frozenset(t.__name__ for t in tools if inspect.iscoroutinefunction(t))


def _check_rewards(code: TrlCode, found: Any) -> None:
    own = own_part(found)
    if not own and not code.rewards:
        home = code.settings.use.rpartition(":")[0]
        raise BadInput(
            f"{code.where}: nothing gives a reward; add a method get_reward() to"
            f" {getattr(found, '__name__', code.settings.use)}, or name a function in run.toml:"
            f' [{code.where}] rewards = {{ "{home}:FUNCTION" = 1.0 }}, for `grpo new` as --set'
            f" '{code.where}.rewards={{\"{home}:FUNCTION\"=1.0}}'"
        )
    if OWN in code.settings.rewards and not own:
        raise BadInput(f"{code.where}.rewards: {_place(found)}: there is no method {OWN}")


def _check_fallback(code: TrlCode) -> None:
    wanted = code.settings.fallback
    if not wanted:
        return
    tools = {name_of(schema): schema for schema in code.schemas}
    if wanted not in tools:
        raise BadInput(
            f"{code.where}.fallback: there is no tool {wanted!r}; known: {', '.join(tools)}"
        )
    arguments = tools[wanted]["function"]["parameters"]["properties"]
    if [kind.get("type") for kind in arguments.values()] != ["string"]:
        raise BadInput(
            f"{code.where}.fallback: the tool {wanted} has the arguments"
            f" {', '.join(arguments) or 'none'}; a reply can only be given to one of type str"
        )


def _check_constructor(cls: type, where: str) -> None:
    given = needed(inspect.signature(cls).parameters.values())
    if given:
        raise BadInput(
            f"{where}: {_place(cls)}: {cls.__name__} takes arguments ({', '.join(given)}); as in"
            " TRL it is made without any: give them defaults, or a method configure(**config)"
        )


def schema_of(tool: Callable[..., Any]) -> tuple[Schema | None, str]:
    """The tool's JSON schema, or None and the reason why type hints and docstring give none."""
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: Schema = get_json_schema(tool)
    except Exception as e:  # reading an author's annotations may raise anything
        return None, " ".join(str(e).split())
    return schema, ""


NEVER_RUNS = "it has a `yield`, so a call makes a generator and runs nothing; return the answer"
"""What is said of a tool that is a generator function."""


def is_generator(tool: Callable[..., Any]) -> bool:
    """Whether a call of the tool does not run it."""
    return inspect.isgeneratorfunction(tool) or inspect.isasyncgenfunction(tool)


def _schema(tool: Callable[..., Any], where: str) -> Schema:
    if is_generator(tool):
        raise BadInput(f"{where}: {_place(tool)}: the tool {tool.__name__}: {NEVER_RUNS}")
    schema, why = schema_of(tool)
    if schema is None:
        raise BadInput(
            f"{where}: {_place(tool)}: the tool {tool.__name__} cannot be described: {why}"
        )
    return schema


def _place(thing: Any) -> str:
    """file:line of a class or a function; its name where no file holds it."""
    return place_of(thing) or str(getattr(thing, "__qualname__", thing))


def _row_faults(found: Any, rewards: Sequence[RewardFunction], task: Task) -> list[str]:
    """Faults if reset or a reward function does not accept the row's columns."""
    misfits = [misfit for f in rewards if (misfit := f.misfit(row_of(task)))]
    if not inspect.isclass(found):
        return misfits
    cls: Any = found
    try:
        inspect.signature(cls.reset).bind(None, **row_of(task))
    except TypeError as e:
        reset = f"{found.__name__}.reset does not take the row: {e}; give it **kwargs"
        return [reset, *misfits]
    return misfits


def is_over(thing: Any, ends: str) -> bool:
    """Whether the attribute `ends` of an environment is true. Raises `AttributeError` for one that
    is not there, and for a method, which would end every episode with its first call."""
    value = getattr(thing, ends)
    if inspect.ismethod(value):
        raise AttributeError(f"{ends} is a method, which is always true; make it a property")
    return bool(value)


class TrlToolbox:
    """One episode of an environment of this style."""

    def __init__(self, code: TrlCode) -> None:
        self._code = code
        self._instance: Instance | None = None
        self._rewarded = False

    @property
    def _own(self) -> Instance:
        if self._instance is None:
            raise RuntimeError("an environment has to be reset first")
        return self._instance

    @property
    def schemas(self) -> Sequence[Schema]:
        return self._code.schemas

    async def reset(self, row: Mapping[str, Any], seed: int) -> str | None:
        await self.close()
        self._instance, self._rewarded = await self._code.take(), False
        if self._instance.thing is None:
            return None
        reset = self._instance.thing.reset
        async with generators() as let_go:
            seeded = functools.partial(_seeded, seed, reset, row, let_go)
            said = await self._ask("reset", seeded, {})
        if said is not None and not isinstance(said, str):
            raise BadInput(
                f"{self._code.where}: {_place(reset)}: reset gave {type(said).__name__}, expected"
                " a text or None"
            )
        return said

    async def call(self, call: ToolCall) -> str:
        tool = self._tool(call.name)
        if tool is None:
            raise ToolFailure(f"Tool {call.name} not found.")
        what, seconds = (
            f"{self._code.where}: the tool {call.name}",
            self._code.settings.call_seconds,
        )
        try:
            result = await in_thread(tool, call.arguments, seconds, what, self._own.thread)
        except Late as e:  # perhaps by what the policy asked for
            raise Late(f"{e}. It was called with {_short(call.arguments)}") from e
        except (BadInput, Unavailable):
            raise
        except Exception as e:
            raise ToolFailure(str(e)) from e
        return answer_text(result, what)

    def newly_earned(self) -> float | None:
        return None  # such a class gives its reward at the end

    async def over(self) -> bool:
        # In its thread, because the attribute may be a property.
        return self._code.settings.ends != "" and await self._ask("ends", self._read_end, {})

    def _read_end(self) -> bool:
        try:
            return is_over(self._own.thing, self._code.settings.ends)
        except AttributeError as e:
            raise BadInput(
                f"{self._code.where}.ends: {_place(type(self._own.thing))}: {e}; name an attribute"
                " that is true when the episode is over"
            ) from e

    async def rewards(
        self, prompt: Sequence[Message], completion: Sequence[Message], row: Mapping[str, Any]
    ) -> Sequence[RewardPart]:
        settings, where = self._code.settings, self._code.where
        thing, thread = self._own.thing, self._own.thread
        parts = [
            part
            for f in self._code.rewards
            for part in await f.of(
                prompt, completion, thing, row, settings.call_seconds, where, thread
            )
        ]
        own = getattr(thing, OWN, None)
        if own is not None:
            value = checked(await self._ask(OWN, own, {}), f"{where}: {OWN}")
            parts.append(RewardPart(OWN_PART, value, settings.rewards.get(OWN, 1.0)))
        self._rewarded = True
        return parts

    async def close(self) -> None:
        """Give the instance back for the next episode. One whose episode has no rewards is
        abandoned: something of it may hang, or may still run."""
        instance, self._instance = self._instance, None
        if instance is None:
            return
        if self._rewarded:
            self._code.idle.append(instance)
        else:
            instance.thread.end()

    def _tool(self, name: str) -> Callable[..., Any] | None:
        attribute = self._code.attributes.get(name)
        if attribute is None:
            return self._code.functions.get(name)
        found: Callable[..., Any] = getattr(self._own.thing, attribute)
        return found

    async def _ask(
        self, name: str, method: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> Any:
        """Call a method that is not a tool. Raises as `asked`."""
        what, seconds = f"{self._code.where}: {name}", self._code.settings.call_seconds
        return await asked(method, arguments, seconds, what, self._own.thread)


def _seeded(
    seed: int, reset: Callable[..., Any], row: Mapping[str, Any], let_go: Callable[[], None]
) -> Any:
    """Reset with seeded generators, which the caller has. A coroutine lets them go."""
    if inspect.iscoroutinefunction(reset):
        return DrawingFrom(seed, reset(**row), let_go)
    seed_generators(seed)
    return reset(**row)


def answer_text(result: Any, what: str) -> str:
    """A tool's answer as text: `str`, as in TRL; for a list of text blocks their texts. A block has
    what its type names; rows that only have a column `type` are no blocks. Raises
    `BadInput` that begins with `what` for an image, audio or a video, and `ToolFailure` for what
    has no text, such as a whole number of 5,000 digits.
    """
    found = result if isinstance(result, list) else []
    are_blocks = all(isinstance(b, dict) and str(b.get("type")) in b for b in found)
    blocks = found if are_blocks else []
    kinds = {str(block["type"]) for block in blocks}
    if media := sorted(kinds & _MEDIA):
        raise BadInput(f"{what}: gave {', '.join(media)}; only text can be played")
    try:
        if kinds == {"text"}:
            return "".join(str(block["text"]) for block in blocks)
        return str(result)
    except Exception as e:
        raise ToolFailure(str(e)) from e


_MEDIA = frozenset(("image", "image_url", "audio", "input_audio", "video"))
"""The types of content blocks that no policy here can read."""
