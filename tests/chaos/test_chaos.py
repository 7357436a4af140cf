"""A night killed at every kind of boundary and at random moments ends as if undisturbed.

This is the short form of `make chaos`: up to ten kills on the scripted engine. The loop, the
phases, the trainer, the sandbox and the files are real.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fieldkit.codec import read_bundle
from tests.chaos.night import Saboteur, Toll, alive, step_shas, survive, trained_twice
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(1200)

STEPS = 2
KILLS = 10


@dataclass(frozen=True)
class Nights:
    """The same night twice: undisturbed, and killed repeatedly."""

    calm: Path
    killed: Path
    toll: Toll


@pytest.fixture(scope="module")
def nights(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Nights:
    calm, killed = (tmp_path_factory.mktemp(name) / "night" for name in ("calm", "killed"))
    for folder in (calm, killed):
        write_run(folder, *policy, run={"steps": STEPS}, engine={"lifecycle": "hotswap"})
    peace = survive(calm, Saboteur(0, seed=0))
    # On a faster machine random moments are closer, so that the night has time for most kills.
    saboteur = Saboteur(KILLS, seed=0, longest=peace.seconds / KILLS)
    return Nights(calm, killed, survive(killed, saboteur))


def test_no_step_is_lost_and_every_adapter_is_the_same_to_the_byte(nights: Nights) -> None:
    # A night may end while the next victim is waited for.
    assert nights.toll.kills >= KILLS // 2
    assert len(step_shas(nights.killed)) == STEPS + 1
    assert step_shas(nights.killed) == step_shas(nights.calm)


def test_no_step_is_done_twice(nights: Nights) -> None:
    assert trained_twice(nights.killed) == []


def test_nothing_is_left_running(nights: Nights) -> None:
    assert alive(nights.calm) == []
    assert alive(nights.killed) == []


def test_the_same_tasks_were_played_with_the_same_seeds(nights: Nights) -> None:
    for n in range(1, STEPS + 1):
        calm, killed = (
            [
                (t.task_id, t.k, t.seed)
                for group in read_bundle(folder / f"step-{n:03d}" / "trajectory_bundle.jsonl")
                for t in group.trajectories
            ]
            for folder in (nights.calm, nights.killed)
        )
        assert calm == killed
