"""A whole step: this loop, and the document's loop rebuilt.

A step begins with an engine that serves the adapter and ends with one that serves the next. Ours
runs the phases that the loop runs, `grpo rollout` and `grpo train`, and lets the engine change the
adapter. The rebuild plays one episode after the other on the engine as it is installed, ends the
engine, trains with the plain trainer in a new process, and starts the engine again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fieldkit.files.atomic import write_json
from fieldkit.records import read_bundle
from rollout.engine.serve import ensure_engine, stop_engine
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.run.folder import RunFolder
from tests.bench import rollouts
from tests.bench.measurements import Measurements, Values, in_turn, tell
from tests.bench.trainers import trainer_environment, words
from tests.bench.work import PRESET, Work

PART = "step"
OURS, DOCUMENT = "this loop", "the document's loop"


def measure(work: Work, taken: Measurements, rounds: int) -> None:
    """Measure both."""
    ways: dict[str, Callable[[], Values]] = {
        OURS: lambda: _ours(work),
        DOCUMENT: lambda: _document(work),
    }
    for name, round_ in in_turn(tuple(ways), rounds):
        taken.take(PART, name, round_, ways[name])


def _ours(work: Work) -> Values:
    """The phases of the loop's first step."""
    with run_of(work, work.smaller) as folder:
        return step_of(work, folder)


@contextmanager
def run_of(work: Work, said: Sequence[str]) -> Iterator[RunFolder]:
    """A started run of the preset with these settings, its engine ended afterwards."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run")
        flags = [word for s in (*said, "run.preflight=false") for word in ("--set", s)]
        _grpo("new", str(folder.path), "--preset", PRESET, *flags)
        _grpo("start", str(folder.path))
        try:
            yield folder
        finally:
            stop_engine(folder.path)


def step_of(work: Work, folder: RunFolder) -> Values:
    """Seconds of a run's first step by part, from a served adapter to the next one served."""
    settings = work.config.engine
    served = (folder.adapter(0), folder.version(0))
    ensure_engine(folder.path, work.model, settings, *served, tell)
    clock = _Clock()
    _grpo("rollout", str(folder.path))
    clock.lap("rollout")
    _grpo("train", str(folder.path))
    clock.lap("train")
    served = (folder.adapter(1), folder.version(1))
    ensure_engine(folder.path, work.model, settings, *served, tell)
    clock.lap("engine")
    return {**clock.laps, **rollouts.amount(read_bundle(folder.bundle(1)))}


def _grpo(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-P", "-m", "scripts.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _document(work: Work) -> Values:
    """Sample one episode after the other, end the engine, load and train, start the engine."""
    settings, chat = rollouts.stock(work.config.engine), ChatRenderer(work.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bundle = folder / "bundle.jsonl"
        try:
            adapter = work.adapter.path
            server = ensure_engine(folder / "run", work.model, settings, adapter, "v0", tell)
            clock = _Clock()
            played = rollouts.play(work, server, chat, 1, bundle)
            clock.lap("rollout")
            stop_engine(folder / "run")
            clock.lap("engine")
            options = folder / "settings.json"
            write_json(options, asdict(work.trainer))
            program = [sys.executable, "-P", "-m", "tests.bench.plain_trainer"]
            subprocess.run(
                [*program, *words(work, bundle, options), "--out", str(folder / "adapter")],
                cwd=ROOT,
                env={**trainer_environment(work), "PYTHONPATH": str(ROOT)},
                check=True,
            )
            clock.lap("train")
            ensure_engine(folder / "run", work.model, settings, folder / "adapter", "v1", tell)
            clock.lap("engine")
        finally:
            stop_engine(folder / "run")
        return {**clock.laps, **{name: played[name] for name in ("turns", "sampled", "read")}}


class _Clock:
    """Seconds by part, from its making."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Add what has passed since the last call to a part, and to the whole."""
        now = time.monotonic()
        for part in (name, "seconds"):
            self.laps[part] = self.laps.get(part, 0.0) + now - self._last
        self._last = now
