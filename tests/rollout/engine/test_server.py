"""What becomes of a server that answers and cannot be used any more; no process is started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import Unavailable
from fieldkit.gate.memory import GIB
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from rollout.engine import preload, vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.leftovers import BESIDE
from rollout.engine.lifecycle import Hotswap, Lifecycle, RunningServer
from rollout.engine.replica import ENGINE
from rollout.engine.server import Server, silent
from rollout.engine.target import Target


class Hangs(Hotswap):
    """Its server lists its models, and never has an adapter loaded."""

    def bring(self, server: RunningServer) -> bool:
        raise Unavailable("/v1/load_lora_adapter: ReadTimeout: timed out")


class Watched(Server):
    """One that runs, and notes what is done with it."""

    def __init__(self, run_dir: Path, used: Lifecycle) -> None:
        self.said: list[str] = []
        settings = EngineSettings()
        target = Target(run_dir, settings, {}, "base")
        super().__init__(run_dir, settings, self.said.append, target)
        self.used, self.done = used, list[str]()

    def serve(self, name: str) -> None:
        self._target = Target(self.run_dir, self.settings, {}, name)
        self.begin()

    def _fingerprint(self) -> str:
        return "the same"

    def _await_ready(self, owned: Any) -> None:
        pass

    def _decide(self) -> Lifecycle:
        return self.used

    def stop(self, *, at_end: bool = False) -> int:
        self.done.append("stop")
        return 1

    def _launch(self) -> None:
        self.done.append("launch")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run whose ledger has a server, which is this process."""
    ledger = Ledger(tmp_path / LEDGER_FILE)
    info = {"fingerprint": "the same", "loaded": {}}
    ledger.started(ledger.announce(ENGINE, ["vllm"], tmp_path / "log", info), os.getpid())
    yield tmp_path
    ledger.forget(ENGINE)


def test_a_server_that_loads_no_adapter_any_more_is_followed_by_a_fresh_one(run_dir: Path) -> None:
    server = Watched(run_dir, Hangs())
    server.begin()
    assert server.done == ["stop", "launch"]
    assert "the running server is of no use (/v1/load_lora_adapter: ReadTimeout" in server.said[0]


class Serves(Hotswap):
    """Its server serves the target."""

    def bring(self, server: RunningServer) -> bool:
        return True


def test_one_that_serves_the_target_stays(run_dir: Path) -> None:
    server = Watched(run_dir, Serves())
    server.begin()
    assert server.done == []


@pytest.mark.parametrize(
    ("sleeps", "free", "begun_anew"),
    [
        (True, [True, True, True], True),
        (True, [True, True, False, True, True], False),
        (False, [True, True, True], False),
    ],
)
def test_one_that_started_on_busy_cores_is_followed_by_another_when_they_stay_free(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, sleeps: bool, free: list[bool], begun_anew: bool
) -> None:
    server = Watched(run_dir, Serves())
    server.note(sleeps_for_now=sleeps)
    looks = iter(free)
    monkeypatch.setattr(preload, "cores_are_free", lambda: next(looks))
    for n in range(len(free)):
        assert server.done == []
        server.serve(f"v{n}")
        if free[n] and n < len(free) - 1:
            server.serve(f"v{n}")  # by an evaluation of the same adapter, which says no more
    assert server.done == (["stop", "launch"] if begun_anew else [])
    assert any("the cores are free now" in line for line in server.said) == begun_anew


@pytest.mark.parametrize(
    ("waits", "replicas", "sleeps"),
    [
        ({preload.WAIT_POLICY: "passive"}, 1, True),
        ({preload.WAIT_POLICY: "passive"}, 2, False),
        ({preload.WAIT_POLICY: "passive", preload.SPINS: "5000"}, 1, False),
    ],
)
def test_a_start_notes_whether_its_threads_sleep_because_the_cores_were_in_use(
    waits: dict[str, str],
    replicas: int,
    sleeps: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Entered(Server):
        def _require_memory(self) -> None:
            pass

        def _enter(self, command: Any, env: Any, scratch: Any, info: Any, fds: Any = ()) -> None:
            self.info = info

    monkeypatch.delenv(preload.WAIT_POLICY, raising=False)
    monkeypatch.setattr(vllm_server, "command", lambda *a: [])
    monkeypatch.setattr(vllm_server, "environment", lambda *a: waits)
    settings = EngineSettings(replicas=replicas)
    target = Target(tmp_path, settings, {}, "base")
    server = Entered(tmp_path, settings, lambda line: None, target)
    server.begin()
    assert server.info["sleeps_for_now"] is sleeps


def test_the_cause_is_told_and_not_that_a_process_of_the_server_failed(tmp_path: Path) -> None:
    """vLLM's own last line says to look above."""
    core, api = "(EngineCore pid=7) ERROR 11-28 [core.py:1510] ", "(APIServer pid=3) "
    cause = "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) is less than desired"
    log = tmp_path / "engine.log"
    log.write_text(
        f"{core}EngineCore failed to start.\n{core}Traceback (most recent call last):\n"
        f"{core}    raise ValueError(\n{core}{cause}\n{api}Traceback (most recent call last):\n"
        f"{api}    raise RuntimeError(\n"
        f"{api}RuntimeError: Engine core initialization failed. See root cause above. …\n"
    )
    assert cause in vllm_server.last_error(log)
    log.write_text(f"{api}RuntimeError: Engine core initialization failed. See root cause above.\n")
    assert "Engine core initialization failed" in vllm_server.last_error(log)


@pytest.mark.parametrize(("gpu", "wanted"), [(None, 3 * GIB), (80 * GIB, 5 * GIB)])
def test_what_a_begun_trainer_holds_already_need_not_be_free(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, gpu: int | None, wanted: int
) -> None:
    """Beside a GPU with memory of its own it holds the host's, of which nothing is asked."""
    ledger = Ledger(run_dir / LEDGER_FILE)
    notes = {BESIDE: ENGINE}
    trainer = ledger.announce("trainer", ["trainer"], run_dir / "log", notes)
    ledger.started(trainer, os.getpid())
    monkeypatch.setattr("fieldkit.gate.memory.gpu_total", lambda: gpu)
    monkeypatch.setattr("fieldkit.gate.memory.held_by", lambda pid: 2 * GIB)
    server = Server(run_dir, EngineSettings(trainer_gib=5.0), silent)
    assert server._room_wanted == wanted
    ledger.forget(trainer)
    assert server._room_wanted == 5 * GIB
