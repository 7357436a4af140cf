"""Which lifecycle is chosen and why, and a server that sleeps while the trainer works.

The server here is a small program that answers the administrative calls; what vLLM does is for
test_serve.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.gate.memory import GIB, Available
from rollout.engine import forecast, vllm_server
from rollout.engine.admin import Admin
from rollout.engine.client import EngineClient
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.lifecycle import decide
from rollout.engine.port import HOST
from rollout.engine.proof import Proof, Verdict
from rollout.engine.replica import entries_of
from rollout.engine.serve import ensure_engine, find_engine, release_memory, stop_engine
from rollout.engine.server import Server
from rollout.engine.target import Served
from tests.conftest import TinyModel

PLENTY, LITTLE = Available(20 * GIB, None), Available(2 * GIB, None)
TRAINER = 4 * GIB
GENEROUS = 60.0  # seconds for a killed process to be gone


def admin(can_swap: bool, can_sleep: bool = False) -> Admin:
    """The calls of a server that answers, with or without those that load adapters and those that
    put it to sleep."""
    calls = SimpleNamespace(can_swap=lambda: can_swap, can_sleep=lambda: can_sleep)
    return cast(Admin, calls)


@pytest.mark.parametrize(
    ("asked", "can_swap", "available", "chosen", "reason"),
    [
        (
            "auto",
            True,
            PLENTY,
            "hotswap",
            "hotswap: the server has /v1/load_lora_adapter, and 20.0 GiB of memory beside the "
            "engine, the trainer needs about 4.0",
        ),
        (
            "auto",
            True,
            LITTLE,
            "restart",
            "restart: 2.0 GiB of memory beside the engine, the trainer needs about 4.0",
        ),
        (
            "auto",
            False,
            PLENTY,
            "restart",
            "restart: this server answers 404 to /v1/load_lora_adapter",
        ),
        ("auto", True, Available(20 * GIB, GIB), "restart", "1.0 GiB of GPU memory"),
        ("auto", True, Available(20 * GIB, 9 * GIB), "hotswap", "9.0 GiB of GPU memory"),
        ("restart", True, PLENTY, "restart", "restart: asked for"),
        ("hotswap", True, LITTLE, "hotswap", "hotswap: asked for"),
    ],
)
def test_the_lifecycle_follows_from_what_was_probed_and_says_why(
    asked: str, can_swap: bool, available: Available, chosen: str, reason: str
) -> None:
    decision = decide(asked, admin(can_swap), available=available, trainer=TRAINER)
    assert decision.lifecycle.name == chosen
    assert reason in decision.reason


def test_a_swap_that_is_demanded_of_a_server_without_it_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="404 to /v1/load_lora_adapter"):
        decide("hotswap", admin(can_swap=False), available=PLENTY, trainer=TRAINER)


def test_a_server_that_can_sleep_is_put_to_sleep_where_there_is_no_room() -> None:
    little = Available(20 * GIB, GIB)
    decision = decide("auto", admin(True, can_sleep=True), available=little, trainer=TRAINER)
    assert decision.lifecycle.name == "sleep"
    assert decision.reason.startswith("sleep: 1.0 GiB of GPU memory beside the engine")
    with pytest.raises(Unavailable, match="404 to /is_sleeping"):
        decide("sleep", admin(can_swap=True), available=PLENTY, trainer=TRAINER)


def test_a_lifecycle_that_nobody_knows_is_bad_input_with_those_that_are_known() -> None:
    known = "one of 'auto', 'hotswap', 'sleep', 'restart', found 'doze'"
    with pytest.raises(BadInput, match=known):
        EngineSettings(lifecycle="doze")
    with pytest.raises(BadInput, match=r"engine\.lifecycle: 'doze' is unknown; known: hotswap"):
        decide("doze", admin(can_swap=True), available=PLENTY, trainer=TRAINER)


# -- a server that sleeps ----------------------------------------------------------------------

SERVER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, calls, *adapters = sys.argv[1:]
roots = dict(a.split("=", 1) for a in adapters)
sleeps = False

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/is_sleeping":
            return self.answer(200, {"is_sleeping": sleeps})
        cards = [{"id": name, "root": root} for name, root in {"base": "", **roots}.items()]
        self.answer(200, {"data": cards})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open(calls, "a") as f:
            f.write(self.path + "\\n")
        global sleeps
        if self.path == "/wake_up" and os.path.exists(calls + ".full"):
            return self.answer(500, {})
        sleeps = self.path.startswith("/sleep") or (sleeps and self.path != "/wake_up")
        if "lora_path" in body:
            roots[body["lora_name"]] = body["lora_path"]
        elif "lora_name" in body:
            del roots[body["lora_name"]]
        self.answer(200 if body or "lora" not in self.path else 400, {})

    def answer(self, status, value):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The small server in vLLM's place; the calls it got."""
    calls = tmp_path / "calls"

    def command(
        model_dir: Path,
        settings: EngineSettings,
        shape: Any,
        adapters: Any,
        port: int,
        host: str = HOST,
    ) -> list[str]:
        loaded = [f"{name}={path}" for name, path in adapters.items()]
        return [sys.executable, "-c", SERVER, str(port), str(calls), *loaded]

    monkeypatch.setattr(vllm_server, "command", command)
    monkeypatch.setattr(forecast, "memory_needed", lambda model, settings: 0)
    yield calls
    stop_engine(tmp_path / "run")


def serve(tiny: TinyModel, run: Path, settings: EngineSettings, n: int) -> Served:
    adapter, version = tiny.adapter(n), f"run-v{n}"
    (served,) = ensure_engine(run, tiny.folder, settings, adapter, version, lambda line: None)
    return served


def test_a_server_that_sleeps_makes_room_for_the_trainer_and_serves_the_next_adapter(
    tiny: TinyModel, tmp_path: Path, calls: Path
) -> None:
    run, settings = tmp_path / "run", replace(EngineSettings(), lifecycle="sleep")
    first = serve(tiny, run, settings, 1)
    assert (first.lifecycle, first.reason) == ("sleep", "sleep: asked for")
    release_memory(run, settings)
    owned = find_engine(run)
    assert owned is not None, "it sleeps, and is still there"
    assert owned.pid == first.pid
    second = serve(tiny, run, settings, 2)
    assert second.pid == first.pid
    assert second.model_name == "run-v2"
    asked = [
        call
        for call in calls.read_text(encoding="utf-8").split()
        if call != "/v1/load_lora_adapter"
    ]
    assert asked == ["/sleep?level=1", "/wake_up", "/v1/unload_lora_adapter"]
    with Server(run, settings, lambda line: None).admin() as admin:
        assert set(admin.models() or {}) == {"base", "run-v2"}


def test_an_adapter_that_is_loaded_a_second_time_is_proven_again(
    tiny: TinyModel, tmp_path: Path, calls: Path
) -> None:
    run, settings = tmp_path / "run", replace(EngineSettings(), lifecycle="hotswap")
    proven = [serve(tiny, run, settings, n).proof is not None for n in (1, 1, 2, 1)]
    assert proven == [True, False, True, True]
    assert calls.read_text(encoding="utf-8").count("/v1/unload_lora_adapter") == 2


def test_a_proof_knows_whether_its_server_lives(
    tiny: TinyModel, tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EngineClient] = []

    def proven(client: EngineClient, adapter: Path, sha: str) -> Proof:
        asked.append(client)
        return Proof(Verdict.NO_CANARY, None, "")

    monkeypatch.setattr("rollout.engine.server.prove", proven)
    run, settings = tmp_path / "run", replace(EngineSettings(), lifecycle="hotswap")
    serve(tiny, run, settings, 1)
    (client,) = asked
    assert client._alive()
    stop_engine(run)
    assert not client._alive()


def test_a_server_that_does_not_wake_gives_way_to_a_new_one(
    tiny: TinyModel, tmp_path: Path, calls: Path
) -> None:
    run, settings = tmp_path / "run", replace(EngineSettings(), lifecycle="sleep")
    first = serve(tiny, run, settings, 1)
    release_memory(run, settings)
    calls.with_name("calls.full").touch()
    second = serve(tiny, run, settings, 2)
    assert second.pid != first.pid
    assert second.model_name == "run-v2"


def test_what_the_trainer_needs_by_now_decides_whether_the_server_stays(
    tiny: TinyModel, tmp_path: Path, calls: Path
) -> None:
    run = tmp_path / "run"
    settings = replace(EngineSettings(), lifecycle="auto", trainer_gib=0.1)
    serve(tiny, run, settings, 1)
    release_memory(run, settings)
    assert find_engine(run) is not None
    release_memory(run, replace(settings, trainer_gib=1e6))  # raised while it runs
    assert find_engine(run) is None


def test_a_server_that_died_makes_room_too(tiny: TinyModel, tmp_path: Path, calls: Path) -> None:
    run, settings = tmp_path / "run", replace(EngineSettings(), lifecycle="sleep")
    first = serve(tiny, run, settings, 1)
    assert first.pid is not None
    server = os.pidfd_open(first.pid)
    signal.pidfd_send_signal(server, signal.SIGKILL)
    assert select.select([server], [], [], GENEROUS)[0]
    os.close(server)
    for _ in range(2):
        release_memory(run, settings)
    assert entries_of(run) == []
    assert serve(tiny, run, settings, 2).model_name == "run-v2"


def test_no_server_sleeps_on_a_cpu(tiny: TinyModel) -> None:
    settings = replace(EngineSettings(), lifecycle="sleep")
    with pytest.raises(BadInput, match=r'engine\.lifecycle: "sleep" is for a GPU.*"auto"'):
        vllm_server.require_servable(tiny.folder, settings)
