"""A step on two servers: the bundle of one, to the byte, whatever becomes of one of them.

The servers are the scripted engine, which answers equal requests equally to the last bit; episodes,
sandbox, ledger, routing and files are real. Nights on two servers, of vLLM too,
are in tests/scripts/night/test_two_servers.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import read_bundle
from fieldkit.errors import Unavailable
from fieldkit.process.ledger import Ledger
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.port import HOST, free_port
from rollout.engine.replica import ENGINE
from rollout.engine.router import samplers
from rollout.engine.serve import (
    ensure_engine,
    find_servers,
    release_memory,
    served_names,
    stop_engine,
)
from rollout.engine.target import Served
from rollout.flight import OnProgress, ignore_progress
from rollout.player import Player
from rollout.policies import sampled_for
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from tests.chaos.night import SITE
from tests.rollout import scripted
from tests.rollout.engine.strangers import KEY, Proxy, Stranger, stranger
from tests.rollout.scripted import SHAPED, rolled_out, worlds
from tests.tiny_model import make_adapter
from tests.tiny_policy import tiny_task

Policy = tuple[Path, Path]
TASKS = [tiny_task(n) for n in range(4)]
K = 4
LIMITS = EpisodeSettings(max_turns=3, max_new_tokens=16, max_model_len=512)
SETTINGS = EngineSettings(
    replicas=2,
    dtype="float32",
    kv_cache_gib=0.1,
    max_model_len=512,
    lifecycle="hotswap",
    start_seconds=600,
    memory_margin_gib=4.0,  # other tests run beside it
)
CUT_SECONDS = 30.0


@dataclass
class Fleet:
    """The servers of one run, and the bundles that they play."""

    folder: Path
    policy: Policy
    settings: EngineSettings = SETTINGS
    said: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def ensure(self, version: str = "run-v0", **changes: Any) -> tuple[Served, ...]:
        settings = replace(self.settings, **changes)
        adapter = changes.pop("adapter", self.policy[1])
        return ensure_engine(
            self.folder, self.policy[0], settings, adapter, version, self.said.append
        )

    @cached_property
    def chat(self) -> ChatRenderer:
        return ChatRenderer(self.policy[0])

    def play(
        self, servers: Sequence[Served], at: Path, on_progress: OnProgress = ignore_progress
    ) -> bytes:
        """The bundle of one step. Its clock stands still, so that it can be compared."""
        at.mkdir(exist_ok=True)

        async def step() -> bytes:
            async with samplers(servers, (self.chat.eot_id,), self.lost.append) as sampler_of:
                player = Player(
                    policy=sampled_for(sampler_of, self.chat),
                    worlds=worlds(at),
                    settings=LIMITS,
                    adapter_sha=servers[0].adapter_sha or "",
                    policy_version=servers[0].version,
                    reward=SHAPED,
                    clock=lambda: 0.0,
                )
                return await rolled_out(player, TASKS, K, at, on_progress)

        return asyncio.run(step())


@pytest.fixture(scope="module")
def fleet(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet") / "run", policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SITE))
        yield fleet
        stop_engine(fleet.folder, fleet.settings)


@pytest.fixture(scope="module")
def calm(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bundle of one server."""
    return fleet.play(fleet.ensure()[:1], tmp_path_factory.mktemp("calm"))


@pytest.fixture(autouse=True)
def none_lost_yet(fleet: Fleet) -> None:
    fleet.lost.clear()
    fleet.said.clear()


def once(after: int, do: Callable[[], object]) -> OnProgress:
    """Does it when so many turns are taken."""
    return scripted.once(lambda progress: progress.turns >= after, do)


def kill(*servers: Served) -> Callable[[], None]:
    def do() -> None:
        for server in servers:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)

    return do


@contextmanager
def cut_for_a_while(server: Served) -> Iterator[tuple[Served, Callable[[], None]]]:
    """The server behind a proxy, and what cuts the proxy for `CUT_SECONDS`."""
    proxy = Proxy(int(server.base_url.rpartition(":")[2]))
    mending = threading.Timer(CUT_SECONDS, proxy.mend)

    def cut() -> None:
        proxy.cut()
        mending.start()

    try:
        yield replace(server, base_url=proxy.url), cut
    finally:
        mending.join()  # fails where it was never cut
        proxy.close()


def test_each_server_has_its_entry_its_port_and_its_part_of_the_processors(fleet: Fleet) -> None:
    one, two = fleet.ensure()
    entries = {e.name: e for e in Ledger(fleet.folder / "ledger.json").entries()}
    assert {name: e.pid for name, e in entries.items()} == {ENGINE: one.pid, "engine-2": two.pid}
    assert one.base_url != two.base_url
    assert one.api_key != two.api_key
    assert [one.name, two.name] == ["engine 1", "engine 2"]
    bound = [_environment(s)["VLLM_CPU_OMP_THREADS_BIND"] for s in (one, two)]
    if len(os.sched_getaffinity(0)) > 1:
        assert not set(bound[0].split(",")) & set(bound[1].split(","))
    assert [s.pid for s in fleet.ensure()] == [one.pid, two.pid], "they are found again"


def test_what_is_done_meanwhile_is_done_before_a_server_answers(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SITE))
    answered: list[list[bool]] = []

    def meanwhile() -> None:
        answered.append([served_names(owned) is not None for owned in find_servers(tmp_path)])

    for _ in range(2):
        ensure_engine(
            tmp_path, policy[0], SETTINGS, policy[1], "v0", lambda line: None, meanwhile=meanwhile
        )
    stop_engine(tmp_path, SETTINGS)
    assert answered == [[False, False], [True, True]]


def _environment(served: Served) -> dict[str, str]:
    from fieldkit.process.owned import environment

    return environment(served.pid or 0)


def test_two_servers_play_the_bundle_of_one(fleet: Fleet, calm: bytes, tmp_path: Path) -> None:
    servers = fleet.ensure()
    assert fleet.play(servers, tmp_path) == calm
    groups = read_bundle(tmp_path / "trajectory_bundle.jsonl")
    keys = [(g.task_id, t.k) for g in groups for t in g.trajectories]
    assert keys == [(task.task_id, k) for task in TASKS for k in range(K)]
    assert fleet.lost == []


def test_a_new_adapter_is_loaded_and_proven_on_both(fleet: Fleet, tmp_path: Path) -> None:
    before = fleet.ensure()
    other = make_adapter(tmp_path / "other", fleet.policy[0], seed=4, scale=0.02)
    servers = ensure_engine(
        fleet.folder, fleet.policy[0], fleet.settings, other, "run-v1", fleet.said.append
    )
    assert [s.pid for s in servers] == [s.pid for s in before]
    assert [s.proof is not None for s in servers] == [True, True]
    assert [line for line in fleet.said if "loading" in line] == [
        "engine 1: loading adapter run-v1",
        "engine 2: loading adapter run-v1",
    ]
    release_memory(fleet.folder, fleet.settings)
    assert len(find_servers(fleet.folder)) == 2, "they stay while the trainer works"


def test_a_server_of_the_person_plays_the_same_bundle_and_goes_on(
    fleet: Fleet, calm: bytes, tmp_path: Path, theirs: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_TEST_STRANGERS_KEY", KEY)
    ours = fleet.ensure()
    mixed = fleet.ensure(urls=[theirs.url], keys_from=["GRPO_TEST_STRANGERS_KEY"])
    assert [s.pid for s in mixed] == [*(s.pid for s in ours), None]
    assert fleet.play(mixed, tmp_path / "mixed") == calm
    assert fleet.play(mixed[2:], tmp_path / "theirs alone") == calm
    mine = EngineSettings(replicas=0, urls=[theirs.url], keys_from=["GRPO_TEST_STRANGERS_KEY"])
    assert stop_engine(tmp_path / "another run", mine) == 0
    assert theirs.process.poll() is None


@pytest.mark.scale
def test_a_server_that_is_ten_times_slower_plays_the_same_bundle(
    fleet: Fleet, calm: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much it is asked is in test_router, where no machine's speed decides."""
    monkeypatch.setenv("GRPO_TEST_STRANGERS_KEY", KEY)
    with stranger(fleet.policy[0], tmp_path / "log", slower=10) as slow:
        servers = fleet.ensure(urls=[slow.url], keys_from=["GRPO_TEST_STRANGERS_KEY"])
        assert fleet.play((servers[0], servers[2]), tmp_path / "step") == calm
    assert fleet.lost == []


@pytest.fixture(scope="module")
def theirs(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    with stranger(policy[0], tmp_path_factory.mktemp("theirs") / "log") as server:
        yield server


def test_an_address_that_does_not_answer_is_left_out_of_a_step_and_said(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.engine.outside._BESIDE_OTHERS_SECONDS", 0.0)
    url = f"http://{HOST}:{free_port(0)}"
    assert len(fleet.ensure(urls=[url])) == 2
    (line,) = [line for line in fleet.said if "one server less" in line]
    assert url in line


@pytest.mark.scale
def test_a_server_that_refuses_connections_for_30_seconds_costs_nothing(
    fleet: Fleet, calm: bytes, tmp_path: Path
) -> None:
    one, two = fleet.ensure()
    with cut_for_a_while(two) as (split, cut):
        assert fleet.play((one, split), tmp_path, once(6, cut)) == calm
    assert find_servers(fleet.folder)[1].pid == two.pid, "it was never ended"


@pytest.mark.scale
def test_the_only_server_that_refuses_connections_for_30_seconds_is_waited_for(
    fleet: Fleet, calm: bytes, tmp_path: Path
) -> None:
    one, _ = fleet.ensure()
    with cut_for_a_while(one) as (split, cut):
        assert fleet.play((split,), tmp_path, once(6, cut)) == calm


def test_a_server_that_is_killed_in_the_middle_loses_nothing_and_plays_the_next_step(
    fleet: Fleet, calm: bytes, tmp_path: Path
) -> None:
    one, two = fleet.ensure()
    assert fleet.play((one, two), tmp_path, once(6, kill(two))) == calm
    (lost,) = fleet.lost
    assert lost.startswith("engine 2 is lost, 1 left: ")
    assert "The server's process has ended" in lost
    again = fleet.ensure()
    assert again[0].pid == one.pid, "the other goes on"
    assert again[1].pid != two.pid


@pytest.mark.scale
def test_where_all_are_killed_the_phase_fails_as_ever_and_goes_on_from_what_is_finished(
    fleet: Fleet, calm: bytes, tmp_path: Path
) -> None:
    servers = fleet.ensure()
    with pytest.raises(Unavailable, match=r"of 16 episodes are finished and kept") as failed:
        fleet.play(servers, tmp_path, once(20, kill(*servers)))
    assert failed.value.exit_code == 4
    kept = (tmp_path / "trajectories.partial.jsonl").read_text(encoding="utf-8")
    assert kept, "nothing was finished before"
    assert fleet.play(fleet.ensure(), tmp_path) == calm


@pytest.mark.scale
def test_with_restarts_both_make_room_for_the_trainer_and_both_come_back(
    fleet: Fleet, calm: bytes, tmp_path: Path
) -> None:
    before = fleet.ensure(lifecycle="restart")
    release_memory(fleet.folder, replace(fleet.settings, lifecycle="restart"))
    assert find_servers(fleet.folder) == ()
    after = fleet.ensure(lifecycle="restart")
    assert not {s.pid for s in before} & {s.pid for s in after}
    assert {s.lifecycle for s in after} == {"restart"}
    assert fleet.play(after, tmp_path) == calm


@pytest.mark.scale
def test_fewer_replicas_end_the_others(fleet: Fleet) -> None:
    one, two = fleet.ensure()
    (left,) = fleet.ensure(replicas=1)
    assert left.pid != two.pid
    assert [e.name for e in find_servers(fleet.folder)] == [ENGINE]
    assert left.pid != one.pid, "it was started for half of the machine"
