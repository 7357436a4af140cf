"""What it costs that no finished step can be lost: one step's writes with and without fsync.

Writes what a step of the reference night writes (journal lines, an episode at a time, the bundle,
the adapter, its JSON files), alternating with the same writes where fsync does nothing.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from fieldkit.codec import encode_trajectory
from fieldkit.files.atomic import append_line, read_json, whole_dir, write_json, write_text
from fieldkit.files.journal import Journal
from scripts.base.checkout import ROOT
from tests.scripts.evals import trajectory

JOURNAL_LINES = 5
EPISODES = 32
TURNS = 12
ADAPTER_BYTES = 3_702_168
"""Of adapters/smol-warm: rank 16 on q and v, float32."""
REFERENCE = ROOT / "runs" / "first-night"


@dataclass(frozen=True)
class FilesPrice:
    """Median seconds of a step's writes, and of the step."""

    durable: float
    careless: float
    step: float

    @property
    def share(self) -> float:
        """Of the step's wall clock that durability takes."""
        return (self.durable - self.careless) / self.step


def measure(below: Path, rounds: int = 15) -> FilesPrice:
    """Write a step's files `rounds` times each way, alternating, in a folder below `below`."""
    durable, careless = [], []
    for _ in range(rounds):
        durable.append(_seconds(below))
        with mock.patch.object(os, "fsync"):
            careless.append(_seconds(below))
    steps = [read_json(p)["wall"] for p in sorted(REFERENCE.glob("step-*/timings.json"))[1:]]
    return FilesPrice(
        statistics.median(durable), statistics.median(careless), statistics.median(steps)
    )


def page(price: FilesPrice, rounds: int) -> str:
    """The section of the page, as Markdown."""
    return f"""## Files that are whole or not there

A step of the reference night took {price.step:.0f} s (median). It writes {JOURNAL_LINES} lines of
the journal, {EPISODES} episodes a line each as they end, the bundle, the adapter of
{ADAPTER_BYTES / 1e6:.1f} MB and three JSON files: {1e3 * price.durable:.0f} ms with fsync and
{1e3 * price.careless:.0f} ms without, so {100 * price.share:.2f} % of the step. Medians of
{rounds}, in turn.
"""


def _seconds(below: Path) -> float:
    played = [encode_trajectory(trajectory(f"t{i}", "a", 4, TURNS, True)) for i in range(EPISODES)]
    adapter = os.urandom(ADAPTER_BYTES)
    with tempfile.TemporaryDirectory(dir=below) as scratch:
        began = time.perf_counter()
        _write_step(Path(scratch), played, adapter)
        return time.perf_counter() - began


def _write_step(folder: Path, played: list[str], adapter: bytes) -> None:
    journal = Journal(folder / "journal.jsonl")
    for _ in range(JOURNAL_LINES):
        journal.append("phase_start", phase="rollout")
    for line in played:
        append_line(folder / "partial.jsonl", line)
    write_text(folder / "trajectory_bundle.jsonl", "".join(line + "\n" for line in played))
    with whole_dir(folder / "adapter") as inside:
        (inside / "adapter_model.safetensors").write_bytes(adapter)
    for name in ("train.json", "step.json", "timings.json"):
        write_json(folder / name, {"schema": 1})
