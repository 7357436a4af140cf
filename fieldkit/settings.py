"""Settings: frozen dataclasses whose fields hold all facts about a key.

A field holds a key's type, bounds, unit and default, whether it may change in a run that has begun,
and its documentation as the string below it. pydantic checks every value. Code that reads a file,
compares two runs or documents the keys asks the fields. This module knows no key.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum, StrEnum
from itertools import pairwise
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import CoreSchema, core_schema

from fieldkit.errors import BadInput
from fieldkit.registry import nearest

T = TypeVar("T")

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Change(StrEnum):
    """Whether a key may change after a run's first step."""

    BINDS = "no"
    """It is part of the experiment."""
    LENGTH = "yes: how long the night is"
    MACHINE = "yes: fits the night to the machine"
    """How fast the night goes and what it needs, not what is sampled or learned."""
    TYPED = "no, and only typed"
    """A command gives it each time; a file must not."""


@dataclass(frozen=True)
class Unit:
    """The unit of a number."""

    name: str


@dataclass(frozen=True)
class Follows:
    """The key has the value of another one; where both are given they must agree."""

    leader: str
    """table.key"""


class NoCondition:
    """Evaluations that differ in this key can still be compared."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A text that is a name in a registry, which may grow."""

    of: Mapping[str, object]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def meanings(self) -> dict[str, str]:
        """Name -> the entry's `meaning`, or the first paragraph of its docstring."""
        said = {
            name: getattr(entry, "meaning", None) or inspect.getdoc(entry) or ""
            for name, entry in self.of.items()
        }
        return {name: " ".join(text.partition("\n\n")[0].split()) for name, text in said.items()}

    def _known(self, name: str) -> str:
        if name not in self.of:
            raise ValueError(name)
        return name


@dataclass_transform(frozen_default=True)
def settings(
    table: str, retired: Mapping[str, str | None] | None = None
) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass of settings. A wrong value raises `BadInput` that names
    table, key, what was expected and what was found.

    retired: keys that older files may still hold, with the key whose value they repeat; None where
    they have no effect any more.
    """

    def make(cls: type[T]) -> type[T]:
        made: Any = checked_dataclass(cls, frozen=True, config=_STRICT)
        checked_init = made.__init__

        def __init__(self: T, *args: Any, **values: Any) -> None:
            try:
                checked_init(self, *args, **values)
            except ValidationError as e:
                # What a class's own __post_init__ raised is the error already.
                own = e.errors()[0].get("ctx", {}).get("error")
                raise (own if isinstance(own, BadInput) else BadInput(_refusal(made, e))) from None

        made.__init__ = __init__
        made.__table__ = table
        made.__retired__ = dict(retired or {})
        finished: type[T] = made
        return finished

    return make


@dataclass(frozen=True)
class Key:
    """One key of a settings file. `expected` says in words which values it takes."""

    table: str
    name: str
    expected: str
    kind: type
    """Of its values, as a file or a flag gives them."""
    default: Any = dataclasses.field(hash=False)  # a table has no hash
    """None where it has to be given."""
    change: Change
    follows: str | None
    condition: bool
    """Whether evaluations that differ in it cannot be compared."""
    choice: Choice | None
    """The registry whose names it takes."""
    unit: str | None
    """Of a number; None without one."""

    @property
    def dotted(self) -> str:
        return f"{self.table}.{self.name}"


def keys(cls: Any) -> Iterator[Key]:
    """The keys of a settings class, in order."""
    for name, field in cls.__pydantic_fields__.items():
        said = field.metadata
        change = next((m for m in said if isinstance(m, Change)), Change.BINDS)
        yield Key(
            table=cls.__table__,
            name=name,
            expected=_expected(field.annotation, said),
            kind=_kind(field.annotation),
            default=None if field.is_required() else field.get_default(call_default_factory=True),
            change=change,
            follows=next((m.leader for m in said if isinstance(m, Follows)), None),
            condition=change is not Change.MACHINE and NoCondition not in said,
            choice=next((m for m in said if isinstance(m, Choice)), None),
            unit=next((m.name for m in said if isinstance(m, Unit)), None),
        )


def tables(config: type) -> dict[str, Any]:
    """The settings classes that a dataclass is composed of, by the names of their tables."""
    return {n: cls for n, cls in get_type_hints(config).items() if hasattr(cls, "__table__")}


# --- reading --------------------------------------------------------------------------------------


def read(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """One table's parsed values as its settings. Raises `BadInput` that begins with `where`."""
    try:
        return cls(**current(cls, values))
    except BadInput as e:
        raise BadInput(f"{where}: {e}") from None


def read_tables(config: type[T], given: Mapping[str, Any], where: str) -> T:
    """Parsed tables as the dataclass that is composed of them, with every key that follows another
    one brought to its value. Raises `BadInput` that begins with `where`."""
    classes = tables(config)
    if unknown := [name for name in given if name not in classes]:
        raise BadInput(f"{where}: {_unknown('table', unknown[0], classes)}")
    made: dict[str, Any] = {}

    def value(leader: str) -> Any:
        name, key = leader.split(".")
        return getattr(table(name), key)

    def table(name: str) -> Any:
        if name not in made:
            values = given.get(name, {})
            if not isinstance(values, dict):
                raise BadInput(f"{where}: {name} must be a table, written [{name}]")
            made[name] = read(classes[name], followed(classes[name], values), where)
        return made[name]

    def followed(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        retired = {name: leader for name, leader in cls.__retired__.items() if leader}
        leaders = {key.name: key.follows for key in keys(cls) if key.follows} | retired
        led = {name: value(leader) for name, leader in leaders.items()}
        for name, theirs in led.items():
            if values.get(name, theirs) != theirs:
                key = f"{cls.__table__}.{name}"
                raise BadInput(
                    f"{where}: {key} is {_shown(values[name])} but {leaders[name]} is {theirs!r}; "
                    f"they are one value: leave out {key}"
                )
        return {**led, **values}

    return config(**{name: table(name) for name in classes})


def current(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a file that an older version may have written, without the retired keys."""
    return {key: value for key, value in values.items() if key not in cls.__retired__}


def retired_keys(config: type) -> frozenset[str]:
    """The dotted keys that older files of this composition may still hold."""
    retired = {name: cls.__retired__ for name, cls in tables(config).items()}
    return frozenset(f"{name}.{key}" for name, keys in retired.items() for key in keys)


# --- words ----------------------------------------------------------------------------------------

_KINDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}
_BOUNDS = {Gt: "above {.gt}", Ge: "of at least {.ge}", Lt: "below {.lt}", Le: "of at most {.le}"}


def _refusal(cls: Any, error: ValidationError) -> str:
    first = error.errors()[0]
    name, found = str(first["loc"][0]), first["input"]
    table, fields = cls.__table__, cls.__pydantic_fields__
    if first["type"] == "unexpected_keyword_argument":
        return f"[{table}]: {_unknown('key', name, fields)}"
    kind, said = fields[name].annotation, fields[name].metadata
    if get_origin(kind) in (dict, list) and len(first["loc"]) > 1:  # a value in it
        name, kind, said = f"{name}.{first['loc'][1]}", get_args(kind)[-1], []
    near = nearest(found, _choices(kind, said)) if isinstance(found, str) else None
    hint = f"; did you mean {near!r}?" if near else ""
    of_kind = f" ({_KINDS.get(type(found), type(found).__name__)})"
    shown = f"{_shown(found)}{of_kind if first['type'].endswith('_type') else ''}"
    return f"{table}.{name}: expected {_expected(kind, said)}, found {shown}{hint}"


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        return "a number with too many digits"


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint}"


def _expected(kind: Any, said: Iterable[Any] = ()) -> str:
    """The values that an annotation and its metadata allow, and their unit."""
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _expected(inner, [*more, *said])
    if choices := _choices(kind, said):
        return f"one of {', '.join(map(repr, choices))}" if len(choices) > 1 else repr(choices[0])
    units = "".join(f" ({m.name})" for m in said if isinstance(m, Unit))
    if get_origin(kind) in (dict, list):
        return "a table" if get_origin(kind) is dict else "a list"
    if kind not in _KINDS:  # a union
        return " or ".join(_expected(k) for k in get_args(kind) if k is not NoneType) + units
    bounds = [_BOUNDS[type(m)].format(m) for m in said if type(m) in _BOUNDS]
    return " ".join([_KINDS[kind], " and ".join(bounds)]).rstrip() + units


def _kind(annotation: Any) -> type:
    """The type of the values that an annotation allows; of a union, its first one's."""
    match get_origin(annotation):
        case None:
            return str if issubclass(annotation, Enum) else annotation
        case origin if origin in (dict, list):
            return origin  # type: ignore[no-any-return]
        case origin if origin is Literal:
            return str
    return _kind(get_args(annotation)[0])  # Annotated, or a union


def _choices(kind: Any, said: Iterable[Any]) -> list[str]:
    """The texts that an annotation allows; none where it is not a choice of texts."""
    if registry := next((m.of for m in said if isinstance(m, Choice)), None):
        return list(registry)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.value for member in kind]
    return list(get_args(kind)) if get_origin(kind) is Literal else []


# --- documentation --------------------------------------------------------------------------------


def settings_lines(cls: type) -> Iterator[str]:
    """A settings class as a section of a Markdown page. Reads the source, so it is slow."""
    found, meanings = list(keys(cls)), meaning_of_keys(cls)
    yield from (
        "",
        f"## [{found[0].table}]",
        "",
        (inspect.getdoc(cls) or "").partition("\n\n")[0],
        "",
    )
    yield from ("| key | default | values | later | meaning |", "|---|---|---|---|---|")
    for key in found:
        default = "–" if key.default is None else f"`{json.dumps(key.default)}`"
        row = (f"`{key.name}`", default, key.expected, key.change, meanings[key.name])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    for key in found:
        if key.choice:
            yield ""
            for name, meaning in key.choice.meanings().items():
                yield f"- `{key.name} = {json.dumps(name)}`: {meaning}"


def meaning_of_keys(cls: type) -> dict[str, str]:
    """What each key means, by name: the string below its field. Reads the source, so it is slow."""
    found: dict[str, str] = {}
    for owner in reversed([c for c in cls.__mro__ if is_dataclass(c)]):
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = " ".join(words.split())
    leaders = {key.name: f" Follows `{key.follows}`." for key in keys(cls) if key.follows}
    return {name: words + leaders.get(name, "") for name, words in found.items()}
