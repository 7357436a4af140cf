"""`python -m tests.trainer.ranks_price BUNDLE ADAPTER`: a step by one process, and by several.

Takes the step of a real bundle on the default model, one process with all cores and several that
share them, by turns. Prints for each the median seconds of the two passes over the bundle and of
the whole command, and their spread. On one processor the ranks compete for the same cores and
caches, and each computes the canary: this shows what the split and the exchange cost, not what a
second device would give. Run it on a machine that does nothing else; the load is printed.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.files.atomic import read_json, write_json
from rollout.engine.preload import preloaded, tcmalloc
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model
from tests.trainer.kept_price import PASSES, SETTINGS


def main(
    bundle: Annotated[Path, typer.Argument(help="A step's trajectory_bundle.jsonl.")],
    adapter: Annotated[Path, typer.Argument(help="The adapter that sampled it.")],
    processes: Annotated[int, typer.Option(min=2, help="Ranks that share the step.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each kind.")] = 5,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32.")] = "bf16",
) -> None:
    """Measure the kinds by turns, after one round that is not counted."""
    kinds = (1, processes)
    passes: dict[int, list[float]] = {kind: [] for kind in kinds}
    walls: dict[int, list[float]] = {kind: [] for kind in kinds}
    figures: dict[int, dict[str, float]] = {}
    model = build_model()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number in range(rounds + 1):
            for kind in kinds if number % 2 else kinds[::-1]:
                out = folder / f"{kind}-{number}"
                settings = dataclasses.replace(SETTINGS, dtype=dtype, processes=kind)  # type: ignore[arg-type]
                write_json(folder / "settings.json", dataclasses.asdict(settings))
                command = [sys.executable, "-P", "-m", "trainer", f"--bundle={bundle}"]
                command += [f"--adapter-init={adapter}", f"--reference-adapter={adapter}"]
                command += [f"--model={model}", f"--settings-json={folder / 'settings.json'}"]
                began = time.perf_counter()
                subprocess.run(
                    [*command, f"--out-dir={out}"],
                    check=True,
                    cwd=ROOT,
                    env=preloaded(os.environ, tcmalloc()),
                    stdout=subprocess.DEVNULL,
                )
                wall = time.perf_counter() - began
                trained = read_json(out / "train.json")
                figures[kind] = trained["train"]
                if number:
                    walls[kind].append(wall)
                    passes[kind].append(sum(trained["seconds"][part] for part in PASSES))
    one, several = (figures[kind] for kind in kinds)
    assert abs(one["grad_norm"] / several["grad_norm"] - 1) < 0.01, "the gradients differ"
    for kind in kinds:
        print(
            f"{kind} process(es): passes {_told(passes[kind])}, whole command {_told(walls[kind])},"
            f" the fullest rank has {figures[kind]['rank_imbalance']:.2f} of its fair share"
        )
    ratios = [
        statistics.median(each[1]) / statistics.median(each[processes]) for each in (passes, walls)
    ]
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"1 / {processes}: {ratios[0]:.2f} in the passes, {ratios[1]:.2f} in the whole command, on"
        f" {len(os.sched_getaffinity(0))} cores, load {load}"
    )


def _told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"


if __name__ == "__main__":
    typer.run(main)
