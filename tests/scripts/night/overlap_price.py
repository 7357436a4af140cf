"""`python -m tests.scripts.night.overlap_price`: what run.overlap = 1 saves of a night's time.

Plays the same short night on the two-layer model by turns with and without an overlap. The scripted
engine waits after each answer, idle, as a server on another machine does. Choose how long, and how
many passes a training takes, so that a rollout takes about as long as a training, which has one
core. Prints for each night the seconds from the first rollout's start to the last training's end,
and those of all rollouts and all trainings in it.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from scripts.run.reader import RunReader
from tests.scripts.night.running import Night
from tests.tiny_policy import make_tiny_policy, write_run


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Nights of each kind.")] = 3,
    steps: Annotated[int, typer.Option(min=2, help="Steps of a night.")] = 5,
    slower: Annotated[float, typer.Option(help="How many times as long an answer takes.")] = 4.0,
    passes: Annotated[int, typer.Option(min=1, help="Optimizer steps over a bundle.")] = 24,
) -> None:
    """Measure the two kinds by turns, each first in every other round."""
    walls: dict[int, list[float]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        make_tiny_policy(base / "policy")
        for number in range(rounds):
            for overlap in (0, 1) if number % 2 else (1, 0):
                folder = base / f"{number}-{overlap}" / "night"
                walls[overlap].append(
                    _play(folder, base / "policy", steps, overlap, slower, passes)
                )
    without, with_one = (statistics.median(walls[overlap]) for overlap in (0, 1))
    print(f"median: {without:.1f} s without, {with_one:.1f} s with: {without / with_one:.2f} times")


def _play(
    folder: Path, policy: Path, steps: int, overlap: int, slower: float, passes: int
) -> float:
    """Play a night; print and return its seconds."""
    write_run(
        folder,
        policy / "model",
        policy / "adapter",
        run={"steps": steps, "overlap": overlap},
        trainer={"passes": passes},
        engine={"lifecycle": "hotswap"},
        eval={"base": "never", "tasks_at_training_temperature": 0},
    )
    night = Night(folder, GRPO_TEST_SLOWER=str(slower), OMP_NUM_THREADS="1")
    if (code := night.run()) != 0:
        raise SystemExit(f"the night ended with {code}:\n{night.said}")
    reader = RunReader(night.folder)
    timings = [reader.timing(n) for n in range(1, steps + 1)]
    spent = {
        phase: sum(s.wall for t in timings for s in t.segments if s.phase == phase)
        for phase in ("rollout", "train")
    }
    wall = timings[-1].segments[1].ended - timings[0].segments[0].began
    added = sum(t.training_wall for t in timings)
    print(
        f"overlap {overlap}: {wall:.1f} s (steps' walls add up to {added:.1f});"
        f" rollouts {spent['rollout']:.1f} s, trainings {spent['train']:.1f} s",
        flush=True,
    )
    return wall


if __name__ == "__main__":
    typer.run(main)
