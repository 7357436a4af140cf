"""`grpo ls`: every run of a folder in a line, with its verdict below, from its small files.

Plays nothing and reads no held-out episode: the stored figures are judged as `grpo table` judges
them. A run that cannot be read is a line with the reason.
"""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.atomic import read_json
from fieldkit.files.journal import Journal
from fieldkit.gate.memory import GIB
from scripts.base.invocation import typeable
from scripts.evidence.findings import read_stored_findings
from scripts.evidence.played import WARM_START, read_summaries
from scripts.run.folder import SWEEP_FILE, RunFolder
from scripts.run.lock import holder
from scripts.run.manifest import evaluated_adapter, other_host, read_manifest
from scripts.watch.activity import State, activity, lives
from scripts.words.quantities import clock, counted

_MIB = 2**20


@dataclass(frozen=True)
class Listed:
    """One run.

    steps: trained ones; None where the folder has a gap. verdict: the headline of `grpo table`;
    empty where no trained adapter was evaluated. bytes: on disk. changed: Unix time of its newest
    file.
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
    manifest = read_manifest(folder)
    loop, host = holder(folder.lock), other_host(manifest)
    # What lives on another host cannot be seen from here.
    doing = activity(Journal(folder.journal).read(), loop, lambda e: bool(host) or lives(e, loop))
    if doing.state is State.FRESH and steps:
        return "its journal is not here"
    if doing.state is State.FRESH and (adapter := evaluated_adapter(manifest)):
        return _evaluation(folder, adapter)
    said = doing.phases if doing.state is State.WORKING else doing.state.value
    if doing.state is State.WAITING:
        said += f" until {clock(doing.until)} to do the {doing.phase} phase again"
    is_over = doing.state in (State.DONE, State.CONVERGED)
    return said if is_over or not host else f"{said}, by the journal of {host}"


def _evaluation(folder: RunFolder, adapter: str) -> str:
    """The state of a folder that `grpo eval` made for one arm."""
    arms = read_summaries(folder.evals)
    told = (
        f"{arm.n_passed} of {counted(arm.n_trajectories, 'attempt')} passed, by"
        f" {adapter if arm.arm == WARM_START else arm.arm}"
        for arm in arms
    )
    return f"an evaluation: {'; '.join(told)}" if arms else "an evaluation, not finished"


def _verdict(folder: RunFolder) -> str:
    page = folder.evidence
    try:
        stored = read_json(page).get("verdict") if page.is_file() else None
        said = str(stored["headline"]) if stored else ""
    except (AttributeError, KeyError, TypeError):  # a person wrote it, or another program
        raise BadInput(
            f"{page}: has no verdict as this version writes it; `grpo table {folder.typed}` writes"
            " it again"
        ) from None
    try:  # the page may be of an older version, which judged by other rules
        verdict = read_stored_findings(folder).verdict if said else None
    except FieldkitError:  # a night that has played on since, or a part that is not here
        return said
    return verdict.headline if verdict else said


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


_COLUMNS = ("run", "state", "steps", "size", "changed")
_NUMBERS = ("steps", "size")
_FEWEST = 2
"""The columns that any width shows, the first ones."""

_SENTENCE = re.compile(r"\D*\d.*?\.(?= [A-Z]|$)")
"""The first sentence of a headline that has a figure, with those before it, such as "Done."."""


def listing_text(runs: Sequence[Listed], width: int) -> str:
    """A line for each run, and indented below it the first sentence of its verdict or why it cannot
    be read. Of the line, columns that do not fit are left out; its cells are never broken."""
    rows = [_COLUMNS, *map(_cells, runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    n = len(_COLUMNS)
    while n > _FEWEST and sum(widths[:n]) + 2 * (n - 1) > width:
        n -= 1
    lines = []
    for row, below in zip(rows, ("", *map(_below, runs)), strict=True):
        cells = zip(_COLUMNS[:n], row, widths, strict=False)
        placed = [c.rjust(w) if name in _NUMBERS else c.ljust(w) for name, c, w in cells]
        lines.append("  ".join(placed).rstrip())
        lines += textwrap.wrap(
            below,
            width,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _cells(r: Listed) -> tuple[str, ...]:
    return (
        r.run,
        r.state.partition(": ")[0],
        "?" if r.steps is None else str(r.steps),
        f"{r.bytes / GIB:.1f} GiB" if r.bytes >= GIB else f"{r.bytes / _MIB:.0f} MiB",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(r.changed)),
    )


def _below(r: Listed) -> str:
    """`grpo table` has the rest, such as who opened the final set before."""
    first = _SENTENCE.match(r.verdict)
    return typeable(r.state.partition(": ")[2] or (first[0] if first else r.verdict))


def plain_listing(runs: Sequence[Listed]) -> list[dict[str, Any]]:
    """The same, JSON-ready."""
    return [asdict(r) for r in runs]
