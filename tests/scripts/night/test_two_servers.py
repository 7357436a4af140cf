"""A night on two servers is the night of one: on the scripted engine, and on vLLM.

One of the two is killed in the middle of the rollout. Everything is real but the scripted engine,
and the two-layer model.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fieldkit.codec import read_bundle
from fieldkit.files.journal import Journal
from fieldkit.process.owned import Owned
from rollout.engine.serve import find_servers, stop_engine
from rollout.seeds import EPISODE_TURN, training_seed
from tests.chaos.night import alive, require_readable, trained_twice
from tests.scripts.night.running import WORLD, Night
from tests.tiny_policy import write_run

pytestmark = [pytest.mark.scale, pytest.mark.timeout(1200)]

TASKS, K = 2, 4


def make(folder: Path, policy: tuple[Path, Path], *, k: int = K, **engine: object) -> Path:
    """A run of one step. k: attempts at a task."""
    return write_run(
        folder / "night",
        *policy,
        run={"steps": 1},
        rollout={
            **{"tasks_per_step": TASKS, "group_size": k, "max_turns": 4, "max_new_tokens": 16},
            "concurrency": 4,  # so that the rollout takes long enough to be looked at
        },
        engine={"lifecycle": "hotswap", "kv_cache_gib": 0.25, **engine},
    )


@pytest.fixture(scope="module")
def evening(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night on two servers that has played what it starts from, and no step yet."""
    folder = make(tmp_path_factory.mktemp("evening"), policy, replicas=2)
    night = Night(folder)
    assert night.run("--steps", "0") == 0, night.said
    return folder


@pytest.fixture
def night(evening: Path, tmp_path: Path) -> Iterator[Night]:
    night = Night(shutil.copytree(evening, tmp_path / "night"))
    yield night
    stop_engine(night.folder.path)


@pytest.fixture(scope="module")
def of_one(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The adapter of the same night on one server."""
    night = Night(make(tmp_path_factory.mktemp("one"), policy))
    assert night.run() == 0, night.said
    assert "engine: starting vLLM" in night.said
    assert "engine 1" not in night.said
    return night.trained()


def second_server(night: Night) -> Owned:
    """Server 2, in the middle of the rollout."""
    return find_servers(night.folder.path)[1]


def in_the_middle(night: Night, k: int = K) -> bool:
    return 0 < len(night.finished_episodes()) < TASKS * k - 1


def require_whole(night: Night, k: int = K) -> None:
    """Every attempt is in the bundle once, with its seeds and the step's policy."""
    groups = read_bundle(night.folder.bundle(1))
    played = Counter((t.task_id, t.k) for g in groups for t in g.trajectories)
    assert played == Counter((g.task_id, n) for g in groups for n in range(k))
    assert len(groups) == TASKS
    for trajectory in (t for g in groups for t in g.trajectories):
        where = (0, 1, trajectory.task_id, trajectory.k)
        assert trajectory.seed == training_seed(*where, EPISODE_TURN)
        seeds = [training_seed(*where, i) for i in range(len(trajectory.turns))]
        assert [turn.seed for turn in trajectory.turns] == seeds
        assert {turn.policy_version for turn in trajectory.turns} == {night.folder.version(0)}
    assert len({t.adapter_sha for g in groups for t in g.trajectories}) == 1
    require_readable(night.folder.path)
    assert trained_twice(night.folder.path) == []
    assert alive(night.folder.path) == []


def losses(night: Night) -> list[str]:
    journal = Journal(night.folder.journal).read()
    return [str(e.data["text"]) for e in journal if e.event == "servers"]


def test_a_night_on_two_servers_is_the_night_of_one(night: Night, of_one: str) -> None:
    assert night.run() == 0, night.said
    assert "engine 2: starting vLLM" in night.said
    assert night.trained() == of_one
    assert losses(night) == []
    require_whole(night)


def test_a_server_that_is_killed_in_the_rollout_costs_the_night_nothing(
    night: Night, of_one: str
) -> None:
    with night.running() as loop:
        night.until(loop, lambda: in_the_middle(night))
        os.kill(second_server(night).pid or 0, signal.SIGKILL)
        assert loop.wait() == 0, night.said
    assert [text.partition(":")[0] for text in losses(night)] == ["engine 2 is lost, 1 left"]
    assert night.trained() == of_one
    require_whole(night)


def test_where_both_are_killed_the_loop_starts_both_once_more_and_loses_nothing(
    night: Night, of_one: str
) -> None:
    with night.running() as loop:
        night.until(loop, lambda: in_the_middle(night))
        for server in find_servers(night.folder.path):
            os.kill(server.pid or 0, signal.SIGKILL)
        assert loop.wait() == 0, night.said
    assert "episodes are finished and kept in" in night.said
    assert "the rollout phase is done once more" in night.said
    assert night.events("phase_start", "rollout") == 2
    assert night.trained() == of_one
    require_whole(night)


# -- vLLM ------------------------------------------------------------------------------------------


def test_a_step_on_two_vllm_servers_survives_the_death_of_one(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    k = 64  # so that the server still has something to play when it is killed
    folder = make(tmp_path, policy, k=k, replicas=2, max_num_seqs=4)
    night = Night(folder, PYTHONPATH=str(WORLD))
    try:
        with night.running() as loop:
            night.until(loop, lambda: in_the_middle(night, k))
            two = second_server(night)
            titles = {p.name() for p in psutil.Process(two.pid).children(recursive=True)}
            assert any(title.startswith("VLLM") for title in titles), titles
            os.kill(two.pid or 0, signal.SIGKILL)
            assert loop.wait() == 0, night.said
    finally:
        stop_engine(folder)
    assert [text.partition(":")[0] for text in losses(night)] == ["engine 2 is lost, 1 left"]
    served = [e.data for e in Journal(night.folder.journal).read() if e.event == "adapter_served"]
    first = [e for e in served if e["version"] == night.folder.version(0)]
    assert {e["server"] for e in first[:2]} == {"engine 1", "engine 2"}
    newest = [e for e in served if e["version"] == night.folder.version(1)]
    assert {e["server"] for e in newest} == {"engine 1", "engine 2"}, "the lost one is back"
    require_whole(night, k)
