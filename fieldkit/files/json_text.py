"""The one door through which JSON comes in: text to plain values, or `BadInput` that names where.

A file from elsewhere can be anything: cut short, nested a hundred thousand deep, with a number of
five thousand digits. Python's readers answer each with an exception of another class, and some of
their values fail only when they are written again. Everything that reads JSON asks here instead.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import ValidationError, from_json

from fieldkit.errors import BadInput

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

MOST_LEVELS = 100
"""Deepest nesting that is read. Our records have 8 levels; the codecs behind them end at 200."""
_NESTING = frozenset({dict, list})
_TOO_DEEP = f"nested more than {MOST_LEVELS} levels deep"


def parse_json(
    text: str | bytes, where: str, *, names_line: bool = True, finite: bool = False
) -> Any:
    """The value of one JSON document. Raises `BadInput` that begins with `where`.

    names_line: `where` ends with a line's number already; else the mistake's line follows it.
    finite: NaN and ±Infinity are mistakes too. They are no JSON, but the config.json of some models
    has them.
    """
    try:
        value = from_json(text, allow_inf_nan=not finite)  # in half of the time that `json` takes
    except (ValueError, TypeError):  # the second for a text that cannot be written as UTF-8
        value = _parse_slowly(text, where, names_line, finite)
    if _may_be_deep(text) and _levels_exceed(value, MOST_LEVELS):
        raise BadInput(f"{_at(where, names_line)}: {_TOO_DEEP}")
    return value


def parse_typed(text: str, adapter: TypeAdapter[T]) -> T | None:
    """The value of a type that names all of its keys and bounds its nesting, in two thirds of the
    time that plain values on the way would take. None where the text is anything else, however
    little: `parse_json` then finds out what it is."""
    try:
        return adapter.validate_json(text)
    except ValidationError:
        return None


def _parse_slowly(text: str | bytes, where: str, names_line: bool, finite: bool) -> Any:
    """With `json`, which also takes half a surrogate pair, as a policy may write one."""

    def refuse(name: str) -> Any:
        raise BadInput(f"{_at(where, names_line)}: {name} is no finite number")

    try:
        return json.loads(text, parse_constant=refuse if finite else None)
    except BadInput:
        raise
    except json.JSONDecodeError as e:
        raise BadInput(f"{_at(where, names_line, e.lineno)}: not valid JSON ({e})") from None
    except UnicodeDecodeError as e:
        raise BadInput(f"{_at(where, names_line)}: not UTF-8 ({e})") from None
    except ValueError:
        raise BadInput(f"{_at(where, names_line)}: a number has too many digits") from None
    except RecursionError:
        raise BadInput(f"{_at(where, names_line)}: {_TOO_DEEP}") from None


def _at(where: str, names_line: bool, line: int = 1) -> str:
    return where if names_line else f"{where}:{line}"


def _may_be_deep(text: str | bytes) -> bool:
    """Counting brackets costs a hundredth of looking at every value; most records have few."""
    if isinstance(text, str):
        return text.count("[") + text.count("{") > MOST_LEVELS
    return text.count(b"[") + text.count(b"{") > MOST_LEVELS


def _levels_exceed(value: Any, most: int) -> bool:
    level = [value] if type(value) in _NESTING else []
    for _ in range(most):
        # The types of a list first: nearly all that is read are lists of numbers.
        inside = [one.values() if type(one) is dict else one for one in level]
        level = [
            inner
            for values in inside
            if not _NESTING.isdisjoint(map(type, values))
            for inner in values
            if type(inner) in _NESTING
        ]
        if not level:
            return False
    return True


def whole_text(text: str) -> str:
    """The text with "?" for each half of a surrogate pair, which neither UTF-8 nor a tokenizer
    takes."""
    return text.encode(errors="replace").decode()
