"""`grpo clean`: removes the checkpoints that nothing of a run needs any more.

A step's adapter and optimizer state are most of its bytes. step-000 is the KL's reference, the
newest step goes on, the one before it trains the newest again if that is damaged, with an overlap
together with the one that sampled its bundle, and the best evaluated one is what a person wants.
Everything else stays too: bundles, figures, evaluations.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.files.journal import Journal
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.run.manifest import check_host, overlap_of
from scripts.run.next_phase import sampled_from
from scripts.run.reader import RunReader

CLEANED = "cleaned"
"""The event in the journal; `removed` names the folders."""


@dataclass(frozen=True)
class Cleaning:
    """What a cleaning removes, in bytes on the disk, and the steps whose checkpoints stay."""

    removed: tuple[Path, ...]
    freed: int
    kept: tuple[int, ...]


def clean(folder: RunFolder, dry_run: bool = False) -> Cleaning:
    """Remove the checkpoints of every step but the first, the best and the last two; with an
    overlap, the last three.

    dry_run: remove nothing. A cleaning that was killed is finished by the next. Raises `NotOwner`
    while a loop runs or where the run is another host's.
    """
    with run_lock(folder.lock):
        reader = RunReader(folder)
        check_host(folder, reader.manifest)
        kept = _kept(reader)
        removed = tuple(
            path
            for n in range(reader.n_steps)
            if n not in kept
            for path in (folder.adapter(n), folder.trainer_state(n))
            if path.is_dir()
        )
        freed = sum(map(_bytes, removed))
        if removed and not dry_run:
            for path in removed:
                shutil.rmtree(path)
            names = [folder.relative(path) for path in removed]  # last: the disk may be full
            Journal(folder.journal).append(CLEANED, removed=names, freed_bytes=freed)
    return Cleaning(removed, freed, tuple(sorted(kept)))


def _kept(reader: RunReader) -> set[int]:
    """The steps whose checkpoints stay."""
    if not reader.steps:
        return set()
    newest = reader.n_steps - 1
    kept = {0, max(0, newest - 1), newest, sampled_from(newest, overlap_of(reader.manifest))}
    evaluated = [s.step for s in reader.steps if s.adapter_sha in reader.evaluations]
    if evaluated:
        kept.add(max(evaluated, key=lambda n: _score(reader, n)))
    return kept


def _score(reader: RunReader, n: int) -> tuple[float, float, int]:
    """Passes, then assertions, then the later step."""
    found: dict[str, Any] = reader.evaluations[reader.steps[n].adapter_sha]
    assertions = found["assertions_passed"] / max(1, found["assertions_total"])
    return found["n_passed"] / found["n_trajectories"], assertions, n


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
