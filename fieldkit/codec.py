"""How records become lines of files, and lines records again.

Records are decoded strictly: an unknown key, a missing key or a number that is not finite is an
error that names file and line. A turn's prompt repeats the conversation so far, so a stored turn
keeps how many ids it shares with the turn before, and only the new ones. Not advertised as part of
fieldkit's public surface.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fieldkit.errors import BadInput
from fieldkit.files.json_text import parse_json, parse_typed
from fieldkit.files.sharded import last_record, read_records
from fieldkit.records import RolloutGroup, Trajectory, in_common

SCHEMA = 1
_HEAD = f'{{"schema":{SCHEMA},'
"""How a line begins that `encode` wrote."""

T = TypeVar("T")

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}
_CLOSED: dict[type, bool] = {}


def _adapter(cls: type) -> TypeAdapter[Any]:
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def _is_closed(cls: type) -> bool:
    """Whether a type refuses other keys than its own and numbers that are not finite, and says what
    each of its values is, none of which is of itself: so its nesting has an end."""
    if cls not in _CLOSED:
        config, schema = getattr(cls, "__pydantic_config__", {}), repr(_adapter(cls).core_schema)
        strict = config.get("extra") == "forbid" and config.get("allow_inf_nan") is False
        free = (f"'type': '{kind}'" in schema for kind in ("any", "definition-ref"))
        _CLOSED[cls] = strict and not any(free)
    return _CLOSED[cls]


def plain(record: Any) -> Any:
    """A record as JSON-ready plain values (tuples become lists, enums their text)."""
    return _adapter(type(record)).dump_python(record, mode="json")


def from_plain(cls: type[T], value: Any, where: str) -> T:
    """Plain values as a record, checked key by key. Raises `BadInput` that begins with `where`."""
    try:
        record: T = _adapter(cls).validate_python(value)
        return record
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(p) for p in first["loc"]) or "record"
        raise BadInput(f"{where}: {key}: {first['msg']} ({e.error_count()} problem(s))") from None


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _loads(text: str, where: str) -> Any:
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise BadInput(f"{where}: expected an object, found {type(value).__name__}")
    schema = value.pop("schema", None)
    if schema != SCHEMA:
        raise BadInput(f"{where}: schema is {schema!r}, this version reads {SCHEMA}")
    return value


def _record(cls: type[T], value: Any, text: str, where: str) -> T:
    """The record of a line. What has no type of its own, as a task's info, is looked through for
    numbers that are not finite."""
    record = from_plain(cls, value, where)
    if "NaN" in text or "Infinity" in text:
        parse_json(text, where, finite=True)
    return record


# Each turn's prompt repeats the whole conversation so far. On disk a turn keeps how many ids it
# shares with the previous prompt + completion (`prefix_len`) and the ids after them.


def _shorten(trajectory: dict[str, Any]) -> dict[str, Any]:
    seen: list[int] = []
    turns = []
    for turn in trajectory["turns"]:
        ids = turn["prompt_ids"]
        shared = in_common(seen, ids)  # not all of another segment, or where a tail was rewritten
        rest = {k: v for k, v in turn.items() if k != "prompt_ids"}
        turns.append({"prefix_len": shared, "prompt_suffix": ids[shared:], **rest})
        seen = [*ids, *turn["completion_ids"]]
    return {**trajectory, "turns": turns}


def _lengthen(trajectory: Any, where: str) -> Any:
    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("turns"), list):
        raise BadInput(f"{where}: turns: expected a list")
    seen: list[int] = []
    turns = []
    for i, turn in enumerate(trajectory["turns"]):
        if not isinstance(turn, dict):
            raise BadInput(f"{where}: turns.{i}: expected an object")
        rest = dict(turn)
        shared, suffix = rest.pop("prefix_len", None), rest.pop("prompt_suffix", None)
        if not isinstance(shared, int) or not isinstance(suffix, list):
            raise BadInput(f"{where}: turns.{i}: prefix_len and prompt_suffix are needed")
        if not 0 <= shared <= len(seen):
            raise BadInput(
                f"{where}: turns.{i}: prefix_len {shared} but only {len(seen)} ids came before"
            )
        ids = seen[:shared] + suffix
        turns.append({"prompt_ids": ids, **rest})
        completion = turn.get("completion_ids")
        seen = ids + (completion if isinstance(completion, list) else [])
    return {**trajectory, "turns": turns}


def encode_trajectory(trajectory: Trajectory) -> str:
    """One JSON line (no newline)."""
    return _dumps({"schema": SCHEMA, **_shorten(plain(trajectory))})


def decode_trajectory(line: str, where: str) -> Trajectory:
    """Inverse of `encode_trajectory`; raises `BadInput` that begins with `where`."""
    return _record(Trajectory, _lengthen(_loads(line, where), where), line, where)


def encode_group(group: RolloutGroup) -> str:
    """One line of trajectory_bundle.jsonl (no newline)."""
    value = plain(group)
    value["trajectories"] = [_shorten(t) for t in value["trajectories"]]
    if not group.left_out:  # a bundle without such groups is what it always was
        del value["left_out"]
    return _dumps({"schema": SCHEMA, **value})


def decode_group(line: str, where: str) -> RolloutGroup:
    """Inverse of `encode_group`; raises `BadInput` that begins with `where`."""
    value = _loads(line, where)
    if not isinstance(value.get("trajectories"), list):
        raise BadInput(f"{where}: trajectories: expected a list")
    value["trajectories"] = [
        _lengthen(t, f"{where}: trajectories.{i}") for i, t in enumerate(value["trajectories"])
    ]
    return _record(RolloutGroup, value, line, where)


def encode(record: Any) -> str:
    """Any other record (Task, StepSummary) as one JSON line."""
    return _dumps({"schema": SCHEMA, **plain(record)})


def decode(cls: type[T], text: str, where: str) -> T:
    """Inverse of `encode`."""
    if text.startswith(_HEAD) and _is_closed(cls):
        found: T | None = parse_typed("{" + text[len(_HEAD) :], _adapter(cls))
        if found is not None:
            return found
    return _record(cls, _loads(text, where), text, where)


def bundle_groups(path: Path) -> Iterator[RolloutGroup]:
    """The groups of a trajectory_bundle.jsonl, or of its shards, one after another in order.

    Raises `BadInput` as `read_records`, and for a line that is no group.
    """
    return (decode_group(line, where) for where, line in read_records(path))


def read_bundle(path: Path) -> tuple[RolloutGroup, ...]:
    """Every group of a bundle at once, for what needs all of them. Raises as `bundle_groups`."""
    return tuple(bundle_groups(path))


def last_group(path: Path) -> RolloutGroup | None:
    """The last group of a bundle; None where there is no bundle, or no group in it."""
    found = last_record(path)
    return None if found is None else decode_group(found[1], found[0])


def stored_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a JSONL file, or of its shards, one after another in order; a torn last
    line is left out. Raises as `bundle_groups`."""
    return (decode_trajectory(line, where) for where, line in read_records(path))


def read_trajectories(path: Path) -> tuple[Trajectory, ...]:
    """Every trajectory at once, for what needs all of them. Raises as `bundle_groups`."""
    return tuple(stored_trajectories(path))
