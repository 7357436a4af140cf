"""Which lifecycle is chosen and why, and one that is added from outside and served with.

The server here is a small program that answers the administrative calls; what vLLM does is for
test_serve.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.gate.memory import GIB, Available
from rollout.engine import vllm_server
from rollout.engine.admin import Admin
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.lifecycle import LIFECYCLES, Hotswap, RunningServer, decide
from rollout.engine.serve import ensure_engine, find_engine, release_memory, stop_engine
from rollout.engine.server import Server
from tests.conftest import TinyModel

PLENTY, LITTLE = Available(20 * GIB, None), Available(2 * GIB, None)
TRAINER = 4 * GIB


def admin(can_swap: bool) -> Admin:
    """The calls of a server that answers, with or without those that load adapters."""
    return cast(Admin, SimpleNamespace(can_swap=lambda: can_swap))


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


def test_a_lifecycle_that_nobody_knows_is_bad_input_with_those_that_are_known() -> None:
    with pytest.raises(BadInput, match="one of 'auto', 'hotswap', 'restart', found 'doze'"):
        EngineSettings(lifecycle="doze")
    with pytest.raises(BadInput, match=r"engine\.lifecycle: 'doze' is unknown; known: hotswap"):
        decide("doze", admin(can_swap=True), available=PLENTY, trainer=TRAINER)


# -- one from outside --------------------------------------------------------------------------

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, calls, *adapters = sys.argv[1:]
roots = dict(a.split("=", 1) for a in adapters)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        cards = [{"id": name, "root": root} for name, root in {"base": "", **roots}.items()]
        self.answer(200, {"data": cards})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open(calls, "a") as f:
            f.write(self.path + "\\n")
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


class Sleep(Hotswap):
    """A lifecycle that is not ours: the server gives its memory back without ending."""

    name = "sleep"
    keeps_memory = False
    offers = "the server can sleep"

    def bring(self, server: RunningServer) -> bool:
        with server.admin() as admin:
            admin.post("/wake_up", {})
        return super().bring(server)

    def release(self, server: RunningServer) -> None:
        with server.admin() as admin:
            admin.post("/sleep", {})


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The small server in vLLM's place and `Sleep` among the lifecycles; the calls it got."""
    LIFECYCLES.register(Sleep.name, Sleep())
    calls = tmp_path / "calls"

    def command(
        model_dir: Path, settings: EngineSettings, shape: Any, adapters: Any, port: int
    ) -> list[str]:
        loaded = [f"{name}={path}" for name, path in adapters.items()]
        return [sys.executable, "-c", SERVER, str(port), str(calls), *loaded]

    monkeypatch.setattr(vllm_server, "command", command)
    monkeypatch.setattr(vllm_server, "memory_needed", lambda model, settings: 0)
    yield calls
    stop_engine(tmp_path / "run")
    LIFECYCLES.remove(Sleep.name)


def test_a_lifecycle_from_outside_serves_adapters_and_makes_room_for_the_trainer(
    tiny: TinyModel, tmp_path: Path, calls: Path
) -> None:
    run, settings = tmp_path / "run", replace(EngineSettings(), lifecycle="sleep")

    def ensure(n: int) -> Any:
        adapter, version = tiny.adapter(n), f"run-v{n}"
        (served,) = ensure_engine(run, tiny.folder, settings, adapter, version, lambda line: None)
        return served

    first = ensure(1)
    assert (first.lifecycle, first.reason) == ("sleep", "sleep: asked for")
    release_memory(run, settings)
    owned = find_engine(run)
    assert owned is not None, "it sleeps, and is still there"
    assert owned.pid == first.pid
    second = ensure(2)
    assert second.pid == first.pid
    assert second.model_name == "run-v2"
    asked = [
        call
        for call in calls.read_text(encoding="utf-8").split()
        if call != "/v1/load_lora_adapter"
    ]
    assert asked == ["/sleep", "/wake_up", "/v1/unload_lora_adapter"]
    with Server(run, settings, lambda line: None).admin() as admin:
        assert set(admin.models() or {}) == {"base", "run-v2"}
