"""Checks an environment's class against its contract without running it.

A class in TRL's style has a constructor without arguments, `reset(**row)`, public methods as tools
with type hints and docstrings, and perhaps `get_reward()`. Each violation is a `Finding` with file
and line. `tryout.py` plays the class to check its behaviour.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from rollout.envs.tool_calls import Schema
from rollout.envs.trl_class import NEVER_RUNS, is_generator, needed, schema_of, tools_of
from rollout.envs.user_code import place_of

HELPERS = frozenset(("close", "done", "render", "seed", "setup", "state", "observe"))
"""Names that authors give to helpers; as public methods they are tools."""


class Level(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One result of the check. where: file:line, or empty."""

    level: Level
    where: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.level}: {self.text}"
            if self.where
            else f"{self.level}: {self.text}"
        )

    def plain(self) -> dict[str, str]:
        """JSON-ready values."""
        return {"level": self.level.value, "where": self.where, "text": self.text}


def schemas_of(kind: type) -> list[Schema]:
    """The schemas of the tools whose signature and docstring are complete."""
    return [schema for tool in tools_of(kind).values() if (schema := schema_of(tool)[0])]


def broken_promises(kind: type, row: Mapping[str, Any]) -> list[Finding]:
    """Everything about the class that prevents playing it or is probably a mistake. row: the
    arguments that `reset` will get.
    """
    found = [*_constructor(kind), *_reset(kind, row), *_get_reward(kind), *_shared(kind)]
    tools = tools_of(kind)
    if not tools:
        text = f"{kind.__name__} has no tools: its public methods are the tools of a policy"
        found.append(Finding(Level.ERROR, place_of(kind), text))
    for tool in tools.values():
        found += _tool(tool)
    if len(tools) == 1:
        only = next(iter(tools.values()))
        schema, _ = schema_of(only)
        if schema is not None and is_one_step(schema):
            found.append(Finding(Level.WARNING, place_of(only), one_step(only.__name__)))
    return found


def _constructor(kind: type) -> list[Finding]:
    make: Callable[..., object] = inspect.getattr_static(kind, "__init__")
    try:
        missing = _given(make)
    except (TypeError, ValueError):  # object's own
        return []
    if not missing:
        return []
    text = (
        f"{kind.__name__}() needs {', '.join(missing)}: instances are made without arguments, so"
        " give each a default, or take them in `configure(**config)`"
    )
    return [Finding(Level.ERROR, place_of(make), text)]


def _reset(kind: type, row: Mapping[str, Any]) -> list[Finding]:
    reset = getattr(kind, "reset", None)
    if not inspect.isfunction(reset):
        text = f"{kind.__name__} has no method `reset(self, **row)`, which begins an episode"
        return [Finding(Level.ERROR, place_of(kind), text)]
    parameters = list(inspect.signature(reset).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        missing = [n for n in needed(parameters) if n not in row]
        if not missing:
            return []
        text = (
            f"reset needs {', '.join(missing)}, which the row has not (it has"
            f" {', '.join(row) or 'no column'}): name a file whose rows have it, or give a default"
        )
        return [Finding(Level.ERROR, place_of(reset), text)]
    text = "reset takes no `**row`: a row has every column of the data, `prompt` among them, and"
    try:
        inspect.signature(reset).bind(None, **row)
    except TypeError as e:
        return [Finding(Level.ERROR, place_of(reset), f"{text} this one does not fit ({e})")]
    return [Finding(Level.WARNING, place_of(reset), f"{text} a further one would not fit")]


def _get_reward(kind: type) -> list[Finding]:
    pay = getattr(kind, "get_reward", None)
    if not inspect.isfunction(pay):
        return []
    missing = _given(pay)
    if not missing:
        return []
    text = f"get_reward needs {', '.join(missing)}: it is called without arguments"
    return [Finding(Level.ERROR, place_of(pay), text)]


def _shared(kind: type) -> list[Finding]:
    """Mutable attributes of the class, which all instances share."""
    return [
        Finding(
            Level.WARNING,
            line_of(kind, name),
            f"{name} is one {type(value).__name__} for all instances: make it in `reset`",
        )
        for name, value in vars(kind).items()
        if isinstance(value, list | dict | set | bytearray)
        and not name.startswith("__")
        and name != name.upper()  # a constant
    ]


def line_of(kind: type, name: str) -> str:
    """file:line where a class or its methods set an attribute first, or of a property; else of the
    class."""
    shown = inspect.getattr_static(kind, name, None)
    if isinstance(shown, property) and shown.fget is not None:
        return place_of(shown.fget)
    try:
        lines, first = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return ""
    for number, line in enumerate(lines):
        set_here = line.strip().removeprefix("self.")
        if set_here.startswith((f"{name} ", f"{name}:", f"{name}=", f"{name},")):
            return f"{inspect.getsourcefile(kind)}:{first + number}"
    return place_of(kind)


def _tool(tool: Callable[..., object]) -> list[Finding]:
    place, name = place_of(tool), tool.__name__
    if is_generator(tool):
        return [Finding(Level.ERROR, place, f"tool {name}: {NEVER_RUNS}")]
    schema, why = schema_of(tool)
    if schema is None:
        text = f"tool {name}: {why.rstrip('.!')}. A tool needs a type hint for each argument and a"
        return [Finding(Level.ERROR, place, f"{text} docstring that describes each under `Args:`")]
    found = []
    starred = [
        str(p)
        for p in inspect.signature(tool).parameters.values()
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if starred:
        text = f"tool {name}: {', '.join(starred)} reads as one argument of that name; name each"
        found.append(Finding(Level.ERROR, place, text))
    if name in HELPERS:
        text = f"{name} is public, so it is a tool of the policy; call a helper _{name}"
        found.append(Finding(Level.WARNING, place, text))
    for argument, hint in get_type_hints(tool).items():
        if argument != "return":
            texts = [f"tool {name}: its argument {argument}: {_unseen(c)}" for c in _classes(hint)]
            found += [Finding(Level.WARNING, place, text) for text in texts]
    return found


_SHOWN = (str, int, float, bool, type(None), list, tuple, dict, object, Any)
"""The types that a tool's schema shows, or that promise nothing."""


def _classes(hint: Any) -> Iterator[type]:
    """The classes in a type hint of which a schema shows no more than `object`."""
    if get_origin(hint) is Literal:
        return
    for inner in get_args(hint):
        yield from _classes(inner)
    if isinstance(hint, type) and not get_args(hint) and hint not in _SHOWN:
        yield hint


def _unseen(kind: type) -> str:
    """What is said of an argument of such a class."""
    fields = ", ".join(getattr(kind, "__annotations__", ()))
    if is_typeddict(kind):
        text = f"the policy is not shown the fields of {kind.__name__}"
    else:
        text = f"the policy's value arrives as JSON, not as {kind.__name__}"
    if issubclass(kind, Enum):
        values = [member.value for member in kind]
        if all(isinstance(value, str | int) for value in values):
            return f"{text}; use `Literal[{', '.join(map(json.dumps, values))}]`"
    if fields:
        return f"{text}; give {fields} arguments of their own, or name them under `Args:`"
    return f"{text}; use a type of JSON, and convert it in the tool"


def _given(method: Callable[..., object]) -> list[str]:
    """The required parameters of a method besides the object."""
    return needed(list(inspect.signature(method).parameters.values())[1:])


def is_one_step(tool: Schema) -> bool:
    """Whether a tool takes any action as one argument."""
    function = tool["function"]
    arguments = list(function.get("parameters", {}).get("properties", {}))
    return function["name"] in ("step", "act", "action") or arguments == ["action"]


def one_step(name: str) -> str:
    """What is said of an environment whose only tool is such a one."""
    return (
        f"its one tool is {name}(action): give every action a method of its own, with"
        " arguments that have types, so that the policy is told what it can do"
    )
