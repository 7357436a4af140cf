"""How long the engine takes to serve a new adapter: a restart, and a swap."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial as bind
from pathlib import Path

from fieldkit.training.adapter import CANARY_FILE, WEIGHTS_FILE
from fieldkit.training.tensors import load_tensors, save_tensors
from rollout.engine.serve import ensure_engine, stop_engine
from tests.bench.measurements import Measurements, Values, in_turn, tell
from tests.bench.work import Work

PART = "a new adapter"
LIFECYCLES = ("restart", "hotswap")


def measure(work: Work, taken: Measurements, rounds: int) -> None:
    """Measure each lifecycle on a server that serves another adapter."""
    for name, round_ in in_turn(LIFECYCLES, rounds):
        taken.take(PART, name, round_, bind(_change, work, name))


def _change(work: Work, lifecycle: str) -> Values:
    settings = work.served_by(lifecycle).config.engine
    with tempfile.TemporaryDirectory() as temporary:
        run, other = Path(temporary) / "run", Path(temporary) / "adapter"
        _another(work.adapter.path, other)
        try:
            (first,) = ensure_engine(run, work.model, settings, work.adapter.path, "v0", tell)
            (then,) = ensure_engine(run, work.model, settings, other, "v1", tell)
        finally:
            stop_engine(run)
        return {"start_seconds": first.seconds, "seconds": then.seconds}


def _another(adapter: Path, folder: Path) -> None:
    """A copy of an adapter with weights a little larger, and without proof."""
    shutil.copytree(adapter, folder, ignore=shutil.ignore_patterns(CANARY_FILE, WEIGHTS_FILE))
    tensors = {name: t * 1.01 for name, t in load_tensors(adapter / WEIGHTS_FILE).items()}
    save_tensors(tensors, folder / WEIGHTS_FILE, {"format": "pt"})
