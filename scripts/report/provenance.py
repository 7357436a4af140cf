"""The provenance of a run: settings, hashes, versions and machine, from its manifest.

The page shows them so that the run can be repeated. An old or broken manifest may lack any entry;
missing entries are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldkit.files.journal import Entry
from fieldkit.gate.memory import GIB
from fieldkit.records import StepSummary
from scripts.run.config import RunConfig, changed_keys
from scripts.words.table import Table

SHA_DIGITS = 16
"""Hex digits shown of a hash: enough to distinguish any two files of a project."""


@dataclass(frozen=True)
class Used:
    """The tables, and the keys of run.toml that differ from the defaults."""

    tables: tuple[Table, ...]
    chosen: frozenset[str]


def used(
    manifest: Mapping[str, Any], steps: Sequence[StepSummary], journal: Sequence[Entry] = ()
) -> Used:
    """Make the tables from the manifest; empty tables are left out. journal: the run's."""
    config = _mapping(manifest, "config")
    found: dict[str, Iterable[tuple[str, str]]] = {
        "What and where": [*_identity(manifest), *_adapters(steps), *_served(journal)],
        "Versions": [(k, str(v)) for k, v in _mapping(manifest, "versions").items()],
        "Hashes (SHA-256)": _hashes(manifest),
        "Settings": _dotted(config),
    }
    tables = [Table(title, ("", ""), tuple(rows)) for title, rows in found.items()]
    chosen = changed_keys(RunConfig().plain(), config) if config else []
    return Used(tuple(t for t in tables if t.rows), frozenset(chosen))


def _identity(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    hardware, data = _mapping(manifest, "hardware"), _mapping(manifest, "data")
    rows = [
        ("model", _mapping(manifest, "model").get("dir")),
        ("pool", _tasks(_mapping(data, "pool"))),
        ("joined the pool", _grown(_mapping(data, "grown"))),
        ("held-out set", _tasks(_mapping(data, "heldout"))),
        ("sandbox", manifest.get("sandbox")),
        ("processor", _processor(hardware)),
        ("GPU", ", ".join(map(str, hardware.get("gpus") or [])) or ("none" if hardware else None)),
        ("host", _mapping(manifest, "host").get("name")),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _tasks(data: Mapping[str, Any]) -> str | None:
    return f"{data.get('n')} tasks in {data.get('path')}" if data else None


def _grown(files: Mapping[str, Any]) -> str | None:
    said = [f"{f.get('n')} tasks of the reserve after step {f.get('step')}" for f in files.values()]
    return ", ".join(said) or None


def _processor(hardware: Mapping[str, Any]) -> str | None:
    if not hardware:
        return None
    memory = hardware.get("memory_bytes")
    size = f", {memory / GIB:.1f} GiB" if isinstance(memory, (int, float)) else ""
    return f"{hardware.get('cpu')}, {hardware.get('cores')} cores{size}"


def _adapters(steps: Sequence[StepSummary]) -> list[tuple[str, str]]:
    if not steps:
        return []
    rows = [("adapter at the start", steps[0].adapter_sha[:SHA_DIGITS])]
    if len(steps) > 1:
        rows.append((f"adapter of step {steps[-1].step}", steps[-1].adapter_sha[:SHA_DIGITS]))
    return rows


def _served(journal: Sequence[Entry]) -> list[tuple[str, str]]:
    """Of how many adapters the server's answers proved that it serves them."""
    served = [e.data for e in journal if e.event == "adapter_served"]
    proven = {s["adapter_sha"] for s in served if s.get("verdict") == "PROVEN"}
    others = len({s["adapter_sha"] for s in served} - proven)
    if not served:
        return []
    told = f"{len(proven)} proven by the server's answers"
    if others:
        told += f", {others} known by name and hash alone"
    return [("adapters served", told)]


def _hashes(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = list(_mapping(_mapping(manifest, "model"), "files").items())
    data = _mapping(manifest, "data")
    rows += [(name, _mapping(data, name).get("sha256")) for name in data]
    rows += list(_mapping(manifest, "evaluation").items())
    return [(str(name), str(sha)[:SHA_DIGITS]) for name, sha in rows if sha]


def _dotted(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _dotted(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, str(inner)


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}
