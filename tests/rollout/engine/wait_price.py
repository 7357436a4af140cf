"""`python -m tests.rollout.engine.wait_price`: threads that wait asleep, or spin a little first.

Plays 8 tasks four times each and trains on the bundle, by turns with each way of waiting,
and beside as many busy programs as are asked for. Prints the ids that were sampled in a second and
those that the trainer's two passes took in a second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import typer

from fieldkit.files.atomic import write_json
from rollout.engine.preload import waiting
from rollout.transcript import ChatRenderer
from tests.bench import child, trainers
from tests.bench.measurements import in_turn, ratio_by_round
from tests.bench.rollouts import play, served
from tests.bench.work import Work

ASLEEP, SPINNING = "asleep", "spinning a little"
WAYS = {ASLEEP: waiting({}, lambda: False), SPINNING: waiting({}, lambda: True)}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Times each is measured.")] = 3,
    busy: Annotated[int, typer.Option(min=0, help="Programs that work beside it.")] = 0,
) -> None:
    """Measure both by turns."""
    work = Work.of_preset()
    found: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in WAYS}
    with at_work(busy):
        for way, _ in in_turn(list(WAYS), rounds):
            sampled, trained = speeds(work, WAYS[way])
            found[way][0].append(sampled)
            found[way][1].append(trained)
            print(f"{way}: {sampled:.0f} ids sampled a second, {trained:.0f} trained", flush=True)
    for i, what in enumerate(("sampled", "trained")):
        asleep, spinning = (found[way][i] for way in (ASLEEP, SPINNING))
        print(
            f"{what}: {statistics.median(asleep):.0f} a second asleep,"
            f" {statistics.median(spinning):.0f} spinning a little (medians); ratio"
            f" {ratio_by_round(spinning, asleep):.2f}"
        )


@contextmanager
def at_work(programs: int) -> Iterator[None]:
    """So many programs that do nothing but work, inside the block."""
    with ExitStack() as stack:
        for _ in range(programs):
            one = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(one.kill)
        yield


def speeds(work: Work, way: dict[str, str]) -> tuple[float, float]:
    """Ids sampled and trained in a second."""
    chat = ChatRenderer(work.model)
    with tempfile.TemporaryDirectory() as temporary, patch.dict(os.environ, way):
        bundle, settings = Path(temporary) / "bundle.jsonl", Path(temporary) / "settings.json"
        with served(work, work.config.engine) as server:
            played = play(work, server, chat, 0, bundle)
        write_json(settings, asdict(work.trainer))
        options = trainers.words(work, bundle, settings)
        env = trainers.trainer_environment(work)
        took = json.loads(child.run("tests.bench.trainer_run", "ours", *options, env=env))
    passes = took["reference_seconds"] + took["gradient_seconds"]
    return played["sampled"] / played["seconds"], took["inputs"] / passes


if __name__ == "__main__":
    typer.run(main)
