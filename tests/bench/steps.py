"""A whole step: this loop, and the document's loop rebuilt.

A step begins with an engine that serves the adapter and ends with one that serves the next. Ours
runs the phases that the loop runs, `grpo rollout` and `grpo train`, and lets the engine change the
adapter. The rebuild plays one episode after the other on the engine as it is installed, ends the
engine, trains with the plain trainer in a new process, and starts the engine again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial as bind
from pathlib import Path

from fieldkit.codec import read_bundle
from fieldkit.files.atomic import write_json
from rollout.engine.serve import ensure_engine, stop_engine
from rollout.transcript import ChatRenderer
from scripts.base.events import Event
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.phases.make_player import serve
from scripts.run import timings
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from tests.bench import child, rollouts
from tests.bench.measurements import Measurements, Values, in_turn, tell
from tests.bench.trainers import trainer_environment, words
from tests.bench.work import PRESET, STEP, Work
from trainer.progress import Stopwatch

PART = "step"
OURS, DOCUMENT = "this loop", "the document's loop"
RESTARTED = "this loop, engine restarted"


def measure(work: Work, taken: Measurements, rounds: int) -> None:
    """Measure ours with both lifecycles that a CPU has, and the document's."""
    ways: dict[str, Callable[[], Values]] = {
        OURS: lambda: _ours(work),
        RESTARTED: lambda: _ours(work.served_by("restart")),
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
        flags = [word for s in (*STEP, *said, "run.preflight=false") for word in ("--set", s)]
        _grpo("new", str(folder.path), "--preset", PRESET, *flags)
        _grpo("start", str(folder.path))
        try:
            yield folder
        finally:
            stop_engine(folder.path)


def step_of(work: Work, folder: RunFolder, n: int = 1) -> Values:
    """Seconds of a run's step `n` by part, from a served adapter to the next one served. A trainer
    is begun where the loop begins one."""

    def served(by: int) -> None:
        config = read_config(folder.config)
        ctx = Context(folder, config, _told, Wish(), timings.Stopwatch(time.time()))
        serve(ctx, folder.adapter(by), folder.version(by), for_training=True)

    served(n - 1)
    watch = Stopwatch()
    with watch.phase("rollout"):
        _grpo("rollout", str(folder.path))
    with watch.phase("train"):
        _grpo("train", str(folder.path))
    with watch.phase("engine"):
        served(n)
    return {**_seconds(watch), **rollouts.amount(read_bundle(folder.bundle(n)))}


def _told(event: Event) -> None:
    tell(event.text)


_grpo = bind(child.run, "scripts.cli")


def _document(work: Work) -> Values:
    """Sample one episode after the other, end the engine, load and train, start the engine."""
    settings, chat = rollouts.stock(work.config.engine), ChatRenderer(work.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bundle, options, run = folder / "bundle.jsonl", folder / "settings.json", folder / "run"
        write_json(options, asdict(work.trainer))
        try:
            (server,) = ensure_engine(run, work.model, settings, work.adapter.path, "v0", tell)
            watch = Stopwatch()
            with watch.phase("rollout"):
                played = rollouts.play(work, server, chat, 1, bundle)
            with watch.phase("engine"):
                stop_engine(run)
            with watch.phase("train"):
                child.run(
                    "tests.bench.plain_trainer",
                    *words(work, bundle, options),
                    *("--out", str(folder / "adapter")),
                    env=trainer_environment(work, stock=True),
                )
            with watch.phase("engine"):
                ensure_engine(run, work.model, settings, folder / "adapter", "v1", tell)
            seconds = _seconds(watch)
        finally:
            stop_engine(run)
        return {**seconds, **{name: played[name] for name in ("turns", "sampled", "read")}}


def _seconds(watch: Stopwatch) -> Values:
    """Those of each part, and of all until now."""
    return {**watch.seconds, "seconds": watch.total}
