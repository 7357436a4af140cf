"""A step whose attempts are played on nodes: the bundle of one box, to the byte, whatever becomes
of a node.

Servers are the scripted engine; the cluster is Ray's own, on this machine, but for the tests of who
is waited for. Whole nights on a cluster are in tests/scripts/night/test_on_nodes.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fieldkit.errors import Unavailable
from fieldkit.process.ledger import Ledger
from rollout.cluster import crew as crews
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.cluster.crew import Crew, RemotePlayer, _Worker, crew
from rollout.cluster.node_server import NodeServer
from rollout.cluster.rollout_worker import Said
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.serve import (
    MakeServer,
    ensure_engine,
    find_servers,
    release_memory,
    stop_engine,
)
from rollout.engine.server import Server
from rollout.engine.target import Served
from rollout.flight import OnProgress, RolloutProgress, ignore_progress
from rollout.policies import WrittenSampler, sampled
from rollout.transcript import ChatRenderer
from tests.chaos.night import SITE, alive
from tests.rollout import scripted
from tests.rollout.cluster.nodes import Nodes, at_work, local_nodes, wait_for, workers
from tests.rollout.cluster.played_there import LIMITS, still_player
from tests.rollout.scripted import SHAPED, rolled_out, worlds
from tests.tiny_policy import tiny_task

Policy = tuple[Path, Path]
TASKS = [tiny_task(n) for n in range(4)]
K = 4
SETTINGS = EngineSettings(
    dtype="float32", kv_cache_gib=0.1, max_model_len=512, lifecycle="hotswap", start_seconds=300
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with local_nodes() as found:
        yield found


@pytest.fixture
def two_nodes(nodes: Nodes) -> Iterator[None]:
    """Two that can play; both are gone afterwards."""
    nodes.add("a", play=1.0)
    nodes.add("b", play=1.0)
    yield
    nodes.remove_all()
    wait_for(lambda: not workers(), "no worker is left")


def ensure(
    folder: Path, policy: Policy, cluster: ClusterSettings | None, said: list[str], **changes: Any
) -> tuple[Served, ...]:
    """The run's servers: on the head of a cluster, or on this machine."""
    model, adapter = policy
    settings = replace(SETTINGS, **changes)
    make: MakeServer = Server if cluster is None else partial(NodeServer, cluster=cluster)
    return ensure_engine(folder, model, settings, adapter, "run-v0", said.append, make=make)


@pytest.fixture(scope="module")
def calm(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """The bundle of one box."""
    folder = tmp_path_factory.mktemp("one-box")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SITE))
        servers = ensure(folder / "run", policy, None, [])

    async def step() -> bytes:
        async with still_player(servers, policy[0], print) as player:
            return await rolled_out(player, TASKS, K, folder)

    yield asyncio.run(step())
    stop_engine(folder / "run")


@pytest.fixture(scope="module")
def run(
    nodes: Nodes, policy: Policy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, tuple[Served, ...]]]:
    """A run with one server on the head."""
    folder = tmp_path_factory.mktemp("cluster") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SITE))
        yield folder, ensure(folder, policy, nodes.settings(), [])
    stop_engine(folder)
    wait_for(lambda: not at_work(), "nothing of it is on a node")
    assert alive(folder) == []


def play(
    cluster: ClusterSettings,
    servers: Sequence[Served],
    model_dir: Path,
    at: Path,
    said: list[str],
    on_progress: OnProgress = ignore_progress,
) -> bytes:
    """The bundle of one step, played on the cluster's nodes."""
    chat = ChatRenderer(model_dir)
    there = partial(still_player, servers, model_dir)

    async def step() -> bytes:
        async with crew(cluster, there, servers, said.append) as workers:
            player = RemotePlayer(
                policy=sampled(WrittenSampler(lambda *_: "", chat), chat),
                worlds=worlds(at),
                settings=LIMITS,
                adapter_sha=servers[0].adapter_sha or "",
                policy_version=servers[0].version,
                reward=SHAPED,
                clock=lambda: 0.0,
                crew=workers,
            )
            return await rolled_out(player, TASKS, K, at, on_progress)

    return asyncio.run(step())


def once(after: int, do: Callable[[], object]) -> OnProgress:
    """Does it when so many attempts are finished."""
    return scripted.once(lambda progress: progress.finished >= after, do)


Run = tuple[Path, tuple[Served, ...]]
Test = Callable[..., None]


def on_nodes(test: Test) -> Test:
    for mark in (pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("two_nodes")):
        test = mark(test)
    return test


@on_nodes
def test_a_server_on_a_node_is_in_the_ledger_and_is_found_again(
    nodes: Nodes, run: Run, policy: Policy
) -> None:
    folder, (server,) = run
    (entry,) = Ledger(folder / "ledger.json").entries()
    assert (entry.name, entry.pid) == ("engine", server.pid)
    assert entry.info["node"]
    assert server.proof is not None
    said: list[str] = []
    (again,) = ensure(folder, policy, nodes.settings(), said)
    assert again.pid == server.pid
    assert said == []
    release_memory(folder, SETTINGS)
    assert len(find_servers(folder)) == 1, "it stays while the trainer works"


@on_nodes
def test_nodes_play_the_bundle_of_one_box(
    nodes: Nodes, run: Run, policy: Policy, calm: bytes, tmp_path: Path
) -> None:
    said: list[str] = []
    assert play(nodes.settings(), run[1], policy[0], tmp_path, said) == calm
    assert said == []


@on_nodes
def test_a_node_that_is_removed_costs_the_step_nothing(
    nodes: Nodes, run: Run, policy: Policy, calm: bytes, tmp_path: Path
) -> None:
    said: list[str] = []
    remove = once(3, lambda: nodes.remove("a"))
    assert play(nodes.settings(), run[1], policy[0], tmp_path, said, remove) == calm
    (line,) = said
    assert line.startswith("the rollout worker on node ")
    assert " is lost, 1 left: " in line


@on_nodes
def test_where_all_nodes_are_removed_what_was_finished_is_kept_and_played_once(
    nodes: Nodes, run: Run, policy: Policy, calm: bytes, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match=r"every rollout worker .* is lost; .* are finished"):
        play(nodes.settings(), run[1], policy[0], tmp_path, [], once(3, nodes.remove_all))
    kept = (tmp_path / "trajectories.partial.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(kept) >= 3
    nodes.add("c", play=1.0)
    first: list[RolloutProgress] = []
    assert play(nodes.settings(), run[1], policy[0], tmp_path, [], first.append) == calm
    assert first[0].kept == len(kept)


@on_nodes
def test_more_workers_than_have_room_are_left_out(
    nodes: Nodes,
    run: Run,
    policy: Policy,
    calm: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollout.cluster.crew._OTHERS_SECONDS", 5.0)
    assert play(nodes.settings(workers=3), run[1], policy[0], tmp_path, []) == calm


@on_nodes
def test_the_end_of_the_engines_process_ends_the_phase_at_once(
    nodes: Nodes, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SITE))
    monkeypatch.setenv("GRPO_TEST_SLOWER", "20")  # so that the step outlasts the look at servers
    folder = tmp_path / "run"
    servers = ensure(folder, policy, nodes.settings(), [])
    stop = once(1, lambda: stop_engine(folder))
    with pytest.raises(Unavailable, match="the processes of all servers have ended"):
        play(nodes.settings(), servers, policy[0], tmp_path / "step", [], stop)


@on_nodes
def test_a_server_that_finds_no_room_says_what_it_needs(
    nodes: Nodes, policy: Policy, tmp_path: Path
) -> None:
    settings = nodes.settings(engine_needs={"GPU": 4.0})
    with pytest.raises(Unavailable, match=r"can hold the engine: cluster\.engine_needs asks for"):
        ensure(tmp_path / "run", policy, settings, [])
    assert Ledger(tmp_path / "run" / "ledger.json").entries() == []


# -- who is waited for, without Ray ----------------------------------------------------------------


class RayError(Exception):
    """Ray's own."""


class Gone(RayError):
    """As RayActorError."""


class Lost(RayError):
    """As ObjectLostError, which is no RayActorError."""


@dataclass
class Actor:
    """A worker as Ray gives it. Each event is set when it has got so far; None: never.
    error: what its load ends in."""

    node: str
    placed: asyncio.Event | None
    loaded: asyncio.Event | None
    error: type[RayError] | None = None

    @property
    def place(self) -> Any:
        return SimpleNamespace(remote=self._place)

    @property
    def begin(self) -> Any:
        return SimpleNamespace(remote=self._begin)

    async def _place(self) -> str:
        await (self.placed or asyncio.Event()).wait()
        return self.node

    async def _begin(self) -> Said:
        await (self.loaded or asyncio.Event()).wait()
        if self.error is not None:
            raise self.error("it was killed")
        return Said(0, "")


def at_once() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def waited_for(actors: Sequence[Actor], said: list[str]) -> tuple[Crew, list[_Worker]]:
    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError, RayActorError=Gone, ObjectLostError=Lost),
        kill=lambda actor: None,
    )
    workers = [_Worker(actor) for actor in actors]
    return Crew(ray, workers, lambda: True, said.append), workers


async def test_a_worker_that_was_placed_is_waited_for_while_it_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crews, "_OTHERS_SECONDS", 0.0)
    loads, said = asyncio.Event(), list[str]()

    def left_out(line: str) -> None:
        said.append(line)
        loads.set()  # the slow one is still loading now

    one, slow, homeless = (
        Actor("one", at_once(), at_once()),
        Actor("slow", at_once(), loads),
        Actor("", None, None),
    )
    there, workers = waited_for([one, slow, homeless], said)
    monkeypatch.setattr(there, "_on_line", left_out)
    await there.begin(ClusterSettings(kind="ray", room_seconds=60))
    assert [w.node for w in workers if not w.lost] == ["one", "slow"]
    assert said == ["the rollout worker that has no node yet is left out: not ready in 0 s"]


@pytest.mark.parametrize("error", [Gone, Lost])
async def test_where_no_worker_gets_ready_each_is_said_and_the_reason_is_not_room(
    error: type[RayError],
) -> None:
    said: list[str] = []
    there, _ = waited_for(
        [Actor("a", at_once(), at_once(), error), Actor("b", at_once(), None)], said
    )
    with pytest.raises(Unavailable, match=r"no rollout worker .* was ready to play"):
        await there.begin(ClusterSettings(kind="ray", room_seconds=0.05))
    assert said == [
        "the rollout worker on node a is lost, 1 left: it was killed",
        "the rollout worker on node b is left out: not ready in 0.05 s",
    ]


async def test_where_no_worker_has_room_the_setting_is_named() -> None:
    said: list[str] = []
    there, _ = waited_for([Actor("", None, None)], said)
    with pytest.raises(Unavailable, match=r"within 0\.05 s \(cluster\.worker_needs"):
        await there.begin(ClusterSettings(kind="ray", room_seconds=0.05))
    assert len(said) == 1
