"""`grpo ls`: every run of a folder in a line, from its small files.

Reads what each run has stored and judges nothing. A run that cannot be read is a line with the
reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.atomic import read_json
from fieldkit.files.journal import Journal
from fieldkit.gate.memory import GIB
from scripts.run.folder import SWEEP_FILE, RunFolder
from scripts.run.lock import holder
from scripts.run.manifest import other_host, read_manifest
from scripts.watch.activity import State, activity, lives
from scripts.words.table import Table

_MIB = 2**20


@dataclass(frozen=True)
class Listed:
    """One run.

    steps: trained ones; None where the folder has a gap. verdict: the stored page's headline; empty
    where no trained adapter was evaluated. bytes: on disk. changed: Unix time of its newest file.
    """

    run: str
    steps: int | None
    state: str
    verdict: str
    bytes: int
    changed: float


def list_runs(runs: Path) -> list[Listed]:
    """The runs below a folder and the nights of its sweeps, the one that changed last first."""
    sweeps = [path.parent for path in runs.glob(f"*/{SWEEP_FILE}")]
    files = [path for where in (runs, *sweeps) for path in where.glob("*/run.toml")]
    found = [_listed(RunFolder(path.parent)) for path in files]
    return sorted(found, key=lambda listed: -listed.changed)


def _listed(folder: RunFolder) -> Listed:
    size, changed = _on_disk(folder.path)
    steps: int | None = None
    try:
        steps = max(0, folder.finished_steps() - 1)
        verdict = _verdict(folder)
        state = _state(folder, steps)
    except FieldkitError as e:
        state, verdict = f"cannot be read: {e}", ""
    return Listed(folder.typed, steps, state, verdict, size, changed)


def _state(folder: RunFolder, steps: int) -> str:
    loop, host = holder(folder.lock), other_host(read_manifest(folder))
    # What lives on another host cannot be seen from here.
    doing = activity(Journal(folder.journal).read(), loop, lambda e: bool(host) or lives(e, loop))
    if doing.state is State.FRESH and steps:
        return "its journal is not here"
    said = doing.phases if doing.state is State.WORKING else doing.state.value
    is_over = doing.state in (State.DONE, State.CONVERGED)
    return said if is_over or not host else f"{said}, by the journal of {host}"


def _verdict(folder: RunFolder) -> str:
    page = folder.evidence
    try:
        stored = read_json(page).get("verdict") if page.is_file() else None
        return str(stored["headline"]) if stored else ""
    except (AttributeError, KeyError, TypeError):  # a person wrote it, or another program
        raise BadInput(
            f"{page}: has no verdict as this version writes it; `grpo table {folder.typed}` writes"
            " it again"
        ) from None


def _on_disk(path: Path) -> tuple[int, float]:
    """Bytes below a folder, and the newest change; files that go meanwhile do not count."""
    size, changed = 0, 0.0
    for where, _, names in os.walk(path):
        for name in names:
            try:
                status = (Path(where) / name).lstat()
            except FileNotFoundError:
                continue
            size, changed = size + status.st_blocks * 512, max(changed, status.st_mtime)
    return size, changed


def listing_table(runs: Sequence[Listed]) -> Table:
    """The runs as a table."""
    rows = (
        (
            r.run,
            "?" if r.steps is None else str(r.steps),
            f"{r.bytes / GIB:.1f} GiB" if r.bytes >= GIB else f"{r.bytes / _MIB:.0f} MiB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(r.changed)),
            r.state,
            r.verdict or "–",
        )
        for r in runs
    )
    return Table("Runs", ("run", "steps", "size", "changed", "state", "verdict"), tuple(rows))


def plain_listing(runs: Sequence[Listed]) -> list[dict[str, Any]]:
    """The same, JSON-ready."""
    return [asdict(r) for r in runs]
