"""`make bench-fieldkit`: what fieldkit's parts cost, ours and the index's 0.34.1 in turn.

`python -m tests.fieldkit.compat.performance WHEEL` makes an environment for each, measures them one
after the other `--rounds` times, and writes performance.md and performance.json in docs/fieldkit.
Processor time, one thread: other programs on the machine change it little.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldkit.files.atomic import write_json, write_text
from scripts.base.checkout import ROOT
from scripts.base.machine import hardware
from scripts.words.table import Table
from tests.fieldkit.compat import measured
from tests.fieldkit.compat.__main__ import ORIGINAL
from tests.fieldkit.compat.scratch import environment

FOLDER = ROOT / "docs" / "fieldkit"

PARTS = {
    "swap": "a swap in and back",
    "three copies": "the copies that a swap needs",
    "delta": "`WeightDeltaTracker.delta()`",
    "plain float32 loop": "a plain loop in float32",
    "plain float64 loop": "the same loop in float64",
    "an assertion a file": "grading, an assertion a file",
    "eight assertions": "grading, eight assertions",
}


def main(
    wheel: Path,
    rounds: Annotated[int, typer.Option(min=2, help="Times each is measured.")] = 5,
    files: Annotated[int, typer.Option(min=8, help="Files that are graded.")] = 100_000,
    out: Annotated[Path, typer.Option(help="Where both files go.")] = FOLDER,
) -> None:
    """Measure both in turn, and write what it was."""
    load = os.getloadavg()[0]
    found: dict[str, list[Any]] = {"ours": [], "original": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pythons = {
            name: environment(folder / name, package)
            for name, package in (("ours", str(wheel)), ("original", ORIGINAL))
        }
        program = shutil.copy(measured.__file__, folder / "measure.py")
        measured.make_files(folder / "files", files)
        for _ in range(rounds):
            for name, python in pythons.items():
                words: list[str | Path] = [python, "-P", program, folder / "files", str(files)]
                ended = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE)
                found[name].append(json.loads(ended.stdout))
    about = {"machine": machine(), "load": load, "rounds": rounds, "files": files}
    write_json(out / "performance.json", {**about, **found})
    write_text(out / "performance.md", page(about, found))
    print(out / "performance.md")


def machine() -> str:
    """The machine in words; no name of it."""
    known = hardware()
    return f"{known['cores']} cores of {known['cpu']}"


def page(about: dict[str, Any], found: dict[str, list[Any]]) -> str:
    """performance.md: medians of all calls of all rounds, and the range of the rounds."""
    rows = tuple(
        (words, *(spread([r["milliseconds"][part] for r in found[name]]) for name in found))
        for part, words in PARTS.items()
    )
    table = Table("Processor time in milliseconds", ("what", "here", ORIGINAL), rows).markdown()
    million = sum(p.numel() for p in measured.adapter().parameters()) / 1e6
    grown = {name: statistics.median(r["growth"] for r in found[name]) / 1024 for name in found}
    return f"""# Performance of fieldkit

Written by `make bench-fieldkit` on {about["machine"]},
load average {about["load"]:.1f} when it began.
{about["rounds"]} rounds, the two in turn, each in an environment of its own with the same torch,
one thread. A cell is the median of all calls and, in brackets, the smallest and largest median of
a round. Every call is in `performance.json`.

{table}
- The adapter has {million:.1f} million float32 parameters in {2 * measured.LAYERS} tensors
  ({4 * million:.0f} MB). A swap copies its own values out, the reference's in, and its own in
  again; the copies alone are measured in the row below it.
- The tracker subtracts and sums in float64, block by block; the original in the weights' dtype.
- {about["files"]:,} files of two lines in folders of {measured.A_FOLDER:,}; the kinds of
  assertions in turn. Ours follows no link, opens no device and bounds every search, which the
  original does not.
- {measured.SWAPS:,} swaps make the process {grown["ours"]:.0f} KiB larger (median);
  with the original {grown["original"]:.0f} KiB.
"""


def spread(rounds: list[list[float]]) -> str:
    """Median of all, with the smallest and largest median of a round."""
    medians = [statistics.median(calls) for calls in rounds]
    whole = statistics.median(value for calls in rounds for value in calls)
    return f"{_short(whole)} ({_short(min(medians))}–{_short(max(medians))})"


def _short(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 10 else f"{milliseconds:.2f}"


if __name__ == "__main__":
    typer.run(main)
