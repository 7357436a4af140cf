"""A night on the nodes of a Ray cluster is the night of one box, also where nodes are removed.

Everything is real but the engine, which is scripted, and the two-layer model; the cluster is of
Ray's own testing utilities, on this machine.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from fieldkit.codec import read_bundle
from fieldkit.records import Turn
from rollout.engine.serve import find_engine, stop_engine
from tests.chaos.night import GRPO_RUN, alive, trained_twice
from tests.rollout.cluster.nodes import Nodes, at_work, local_nodes, wait_for
from tests.scripts.night.running import Night
from tests.tiny_policy import write_run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

TASKS, K = 2, 4


def make(folder: Path, policy: tuple[Path, Path], **cluster: object) -> Path:
    return write_run(
        folder / "night",
        *policy,
        run={"steps": 1},
        rollout={
            **{"tasks_per_step": TASKS, "group_size": K, "max_turns": 4, "max_new_tokens": 16},
            "concurrency": 2,  # so that the rollout takes long enough to be looked at
        },
        engine={"lifecycle": "hotswap", "kv_cache_gib": 0.25},
        cluster=cluster,
    )


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with local_nodes() as found:
        yield found


@pytest.fixture(scope="module")
def of_one_box(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Night:
    night = Night(make(tmp_path_factory.mktemp("one"), policy))
    assert night.run() == 0, night.said
    return night


@pytest.fixture(scope="module")
def evening(
    nodes: Nodes, policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A night on the cluster that has played what it starts from, and no step yet."""
    folder = make(tmp_path_factory.mktemp("evening"), policy, **asdict(nodes.settings()))
    nodes.add("first", play=1.0, train=1.0)
    night = Night(folder)
    assert night.run("--steps", "0") == 0, night.said
    nodes.remove_all()
    return folder


@pytest.fixture
def night(evening: Path, nodes: Nodes, tmp_path: Path) -> Iterator[Night]:
    """Its copy, on two nodes that can play, of which one can train."""
    nodes.add("a", play=1.0, train=1.0)
    nodes.add("b", play=1.0)
    night = Night(shutil.copytree(evening, tmp_path / "night"))
    yield night
    stop_engine(night.folder.path)
    nodes.remove_all()


def play_of(night: Night) -> list[object]:
    """All that was sampled in step 1, by task and attempt."""
    return [
        (
            g.task_id,
            t.k,
            t.seed,
            [(turn.prompt_ids, turn.completion_ids, turn.logprobs) for turn in t.turns],
            t.grade,
            t.reward,
        )
        for g in read_bundle(night.folder.bundle(1))
        for t in g.trajectories
    ]


def _sampled(turn: Turn) -> object:
    return turn.prompt_ids, turn.completion_ids, turn.logprobs, turn.policy_version


def require_whole(night: Night, of_one_box: Night) -> None:
    assert play_of(night) == play_of(of_one_box)
    assert night.trained() == of_one_box.trained()
    assert trained_twice(night.folder.path) == []
    assert alive(night.folder.path) == []
    wait_for(lambda: not at_work(), "nothing of the night is on a node")


def said(night: Night) -> str:
    """What the loops said, without the line ends of a terminal."""
    return " ".join(night.said.split())


def trainers(night: Night) -> list[int]:
    """The pids of trainers of this night on a node."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        of_night = any(word.startswith(str(night.folder.path)) for word in words)
        if of_night and words[1:4] == ["-P", "-m", "trainer"]:
            found.append(process.info["pid"])
    return found


def test_a_night_on_nodes_is_the_night_of_one_box(night: Night, of_one_box: Night) -> None:
    assert night.run() == 0, night.said
    assert "engine: on node " in night.said
    require_whole(night, of_one_box)


def test_a_node_removed_in_the_rollout_costs_the_night_nothing(
    night: Night, nodes: Nodes, of_one_box: Night
) -> None:
    with night.running() as loop:
        night.until(loop, lambda: 0 < len(night.finished_episodes()) < TASKS * K - 1)
        nodes.remove("b")
        assert loop.wait() == 0, night.said
    assert "is lost, 1 left" in said(night)
    require_whole(night, of_one_box)


def test_a_node_removed_in_training_costs_the_night_a_second_try_on_another_one(
    night: Night, nodes: Nodes, of_one_box: Night
) -> None:
    with night.running() as loop:
        night.until(loop, lambda: trainers(night))
        nodes.add("c", train=1.0)
        nodes.remove("a")
        assert loop.wait() == 0, night.said
    assert "the node that the trainer was on is lost" in said(night)
    require_whole(night, of_one_box)


def test_the_node_of_the_engine_removed_in_the_rollout_is_exit_4_and_goes_on_elsewhere(
    night: Night, nodes: Nodes, of_one_box: Night
) -> None:
    night.env["GRPO_TEST_SLOWER"] = "20"  # so that the rollout outlasts the look at servers
    config = night.folder.config
    config.write_text(config.read_text().replace('"head" = 1.0', '"serve" = 1.0'))
    nodes.add("s", serve=1.0)
    with night.running() as loop:
        night.until(loop, lambda: 0 < len(night.finished_episodes()) < TASKS * K - 1)
        nodes.remove("s")
        assert loop.wait() == 4, night.said
    assert "the processes of all servers have ended" in said(night)
    assert "episodes are finished and kept in" in said(night)
    nodes.add("t", serve=1.0)
    assert night.run() == 0, night.said
    require_whole(night, of_one_box)


def test_after_a_kill_of_loop_and_phase_stop_leaves_nothing_on_any_node(night: Night) -> None:
    with night.running() as loop:
        night.until(loop, lambda: 0 < len(night.finished_episodes()) < TASKS * K - 1)
        engine = find_engine(night.folder.path)
        family = psutil.Process(loop.pid).children(recursive=True)
        for process in (psutil.Process(loop.pid), *family):
            if engine and process.pid != engine.pid:
                process.send_signal(signal.SIGKILL)
    assert alive(night.folder.path), "the engine outlives the loop"
    words = [*GRPO_RUN[:-1], "stop", str(night.folder.path)]
    done = psutil.Popen(words, env=night.env).wait()
    assert done == 0
    assert alive(night.folder.path) == []
    wait_for(lambda: not at_work(), "no worker and no server is on a node")


def test_after_a_kill_the_next_run_goes_on_where_it_was(night: Night, of_one_box: Night) -> None:
    with night.running() as loop:
        night.until(loop, lambda: 0 < len(night.finished_episodes()) < TASKS * K - 1)
        loop.kill()
    assert night.run() == 0, night.said
    require_whole(night, of_one_box)
