"""`python -m tests.rollout.engine.start_price`: an engine's start with kept kernels and without.

Starts the server with the default model and adapter, by turns as vLLM has it (it compiles its
kernels anew, behind a precompiled header) and with the kept kernels. Prints the seconds until it is
ready, medians, their ratio and the machine's load.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rollout.engine import kernel_cache
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.serve import ensure_engine, stop_engine
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model


def main(rounds: Annotated[int, typer.Option(min=1, help="Starts of each kind.")] = 2) -> None:
    """Measure both kinds by turns, after one start that fills the kept kernels."""
    model = build_model()
    with_kept = kernel_cache.environment
    _start(model)
    seconds: dict[str, list[float]] = {"compiled": [], "kept": []}
    for number in range(rounds):
        for kind in sorted(seconds, reverse=number % 2 == 1):
            kernel_cache.environment = with_kept if kind == "kept" else lambda folder: {}
            seconds[kind].append(_start(model))
            load = "/".join(f"{value:.1f}" for value in os.getloadavg())
            print(f"{kind}: {seconds[kind][-1]:.1f} s, load {load}", flush=True)
    medians = {kind: statistics.median(found) for kind, found in seconds.items()}
    for kind, median in medians.items():
        print(f"{kind}: median {median:.1f} s of {rounds}")
    print(f"ratio {medians['compiled'] / medians['kept']:.2f}")


def _start(model: Path) -> float:
    """Start one server, prove its adapter, end it. Seconds until it was proven."""
    with tempfile.TemporaryDirectory() as run:
        adapter = ROOT / "adapters" / "smol-warm"
        (served,) = ensure_engine(Path(run), model, EngineSettings(), adapter, "v0", print)
        stop_engine(Path(run))
        return served.seconds


if __name__ == "__main__":
    typer.run(main)
