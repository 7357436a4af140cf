"""What a manifest has to look like, so that a damaged one is named and not met halfway.

A key that this version adds may be missing in an older run, so a missing one is an error only where
something asks for it. What is there has to be of its kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from fieldkit.errors import BadInput
from fieldkit.settings import tables
from rollout.envs.env_settings import EnvSettings
from scripts.run.config import RunConfig

_TEXT, _NUMBER, _WHOLE, _OBJECT, _LIST = (str,), (int, float), (int,), (dict,), (list,)
_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
HELP = "put the file back, or start another run with `grpo new`"


@cache
def _shape() -> Mapping[str, Any]:
    """Of each key: what may be there, as types, or the same of the keys below it ("*": any)."""
    config = {name: _of_settings(cls) for name, cls in tables(RunConfig).items()}
    return {
        "run": _TEXT,
        "created": _NUMBER,
        "config": {**config, "envs": {"*": _of_settings(EnvSettings)}, "*": _OBJECT},
        "versions": {"*": _TEXT},
        "model": {"dir": _TEXT, "files": {"*": _TEXT}},
        "adapter": {"sha": _TEXT, "other_base": (str, NoneType)},
        "data": {
            "pool": {"path": _TEXT, "sha256": _TEXT, "n": _WHOLE, "tasks": {"*": _TEXT}},
            "heldout": {"path": _TEXT, "sha256": _TEXT, "n": _WHOLE},
            "grown": {"*": {"sha256": _TEXT, "n": _WHOLE, "step": _WHOLE}},  # run_pool.GROWN
            "appended": {"*": _WHOLE},  # run_pool.APPENDED
            "passed_over": {"*": _TEXT},  # run_pool.PASSED_OVER
        },
        "evaluation": {"*": _TEXT},
        "fewer_tasks": {"usual": _WHOLE},  # manifest.FEWER
        "environments": {"*": _TEXT},
        "yardsticks": _LIST,
        "hardware": {"cpu": _TEXT, "cores": _WHOLE, "memory_bytes": _NUMBER, "gpus": _LIST},
        "sandbox": _TEXT,
        "host": {"*": _TEXT},
    }


def _of_settings(cls: Any) -> dict[str, tuple[type, ...]]:
    """The kinds that each key of a settings class takes. Its bounds do not bind: a run that was
    begun under wider ones can still be read."""
    return {name: _kinds(field.annotation) for name, field in cls.__pydantic_fields__.items()}


def _kinds(annotation: Any) -> tuple[type, ...]:
    origin = get_origin(annotation)
    if origin is Literal:
        return tuple({type(choice) for choice in get_args(annotation)})
    if origin in (list, dict):
        return (origin,)
    if annotation is float:
        return _NUMBER
    if isinstance(annotation, type):
        return next((kind,) for kind in (*_KINDS, object) if issubclass(annotation, kind))
    return tuple(kind for one in get_args(annotation) for kind in _kinds(one))  # a union


class Part(dict[str, Any]):
    """An object of a manifest; asking it for a key that is missing is `BadInput`."""

    def __init__(self, value: Mapping[str, Any], where: str) -> None:
        super().__init__(value)
        self._where = where

    def __missing__(self, key: str) -> NoReturn:
        raise BadInput(f"{self._where}{key} is missing; {HELP}")


def whole_manifest(value: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The manifest, its objects as `Part`. Raises `BadInput` naming file and key."""
    for key, wanted in _mistakes(value, _shape(), ""):
        raise BadInput(f"{file}: {key} is not {wanted}; {HELP}")
    return _parts(value, f"{file}: ")


def _mistakes(value: Any, shape: Any, where: str) -> Iterator[tuple[str, str]]:
    """Each value that is not what it should be: its key, and what it should be."""
    if not _is_writable(value):
        yield where, "a finite number" if isinstance(value, float) else "a text in UTF-8"
    elif isinstance(shape, tuple):
        if not isinstance(value, shape) or (isinstance(value, bool) and bool not in shape):
            yield where, " or ".join(_KINDS[k] for k in shape if k is not int or float not in shape)
    elif shape is not None and not isinstance(value, dict):
        yield where, _KINDS[dict]
    if isinstance(value, dict | list):
        below = shape if isinstance(shape, dict) else {}
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            path = f"{where}.{key}" if where else str(key)
            if not _is_writable(key):
                yield where or "a key", "a text in UTF-8"
            yield from _mistakes(inner, below.get(key, below.get("*")), path)


def _is_writable(value: Any) -> bool:
    """Whether JSON in UTF-8 can hold the number or the text; what we write, it can."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or value.isascii() or not _SURROGATE.search(value)


def _parts(value: Mapping[str, Any], where: str) -> Part:
    found = {
        key: _parts(inner, f"{where}{key}.") if isinstance(inner, dict) else inner
        for key, inner in value.items()
    }
    return Part(found, where)
