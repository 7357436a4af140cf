"""A model of the hub: the copy that is here is used, and what is missing is downloaded in sight."""

from __future__ import annotations

import errno
import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from fieldkit.errors import BadInput, Interrupted, Shortage
from scripts.base.events import Event, EventKind, Tell
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.prepare.hub import download, hub_copy, hub_model
from scripts.run.config import ModelSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch

COMMIT = "c" * 40
FILES = {
    "config.json": b"{}",
    "tokenizer_config.json": b"{ }",
    "model.safetensors": bytes(40_000_000),
    "README.md": b"not asked for",
}
STALLS_BEYOND = 1_000_000


@dataclass
class _Stall:
    """A file that stops coming in the middle: `begun` once it does, until `over`."""

    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class _Hub(BaseHTTPRequestHandler):
    """The part of a hub's protocol by which the client lists and fetches a model's files."""

    protocol_version = "HTTP/1.1"
    stalls: _Stall | None = None

    def do_GET(self) -> None:
        self._answer(send=True)

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def _answer(self, *, send: bool) -> None:
        path, headers = self.path.partition("?")[0], {"X-Repo-Commit": COMMIT}
        if path.startswith("/api/models/some/model/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in FILES.items()
            ]
            body = json.dumps(entries).encode()
        elif path.startswith("/api/models/some/model"):
            body = json.dumps({"id": "some/model", "sha": COMMIT, "siblings": []}).encode()
        elif (data := FILES.get(path.rpartition("/")[2])) is not None:
            body, headers["ETag"] = data, f'"{_etag(data)}"'
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if send and self.stalls is not None and len(body) > STALLS_BEYOND:
            self.wfile.write(body[:STALLS_BEYOND])
            self.stalls.begun.set()
            self.stalls.over.wait()
        elif send:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub on this machine; gives the folder of the client's copies."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, copies = f"http://127.0.0.1:{server.server_port}", tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(copies))  # of this process
    places = {"HF_HUB_CACHE": str(copies), "GRPO_CACHE": str(tmp_path / "cache")}
    for name, value in {"HF_ENDPOINT": url, **places}.items():
        monkeypatch.setenv(name, value)
    try:
        yield copies
    finally:
        server.shutdown()
        server.server_close()


def context(folder: Path, tell: Tell, wish: Wish) -> Context:
    config = RunConfig(model=ModelSettings(path="some/model"))
    return Context(RunFolder(folder), config, tell, wish, Stopwatch(0.0))


def test_a_phase_shows_the_download_and_keeps_what_came(hub: Path, tmp_path: Path) -> None:
    told: list[Event] = []
    ctx = context(tmp_path, told.append, Wish())
    folder = ctx.model_dir()
    wanted = {name: len(data) for name, data in FILES.items() if name != "README.md"}
    assert {p.name: p.stat().st_size for p in folder.iterdir()} == wanted
    assert {e.kind for e in told} == {EventKind.PROGRESS}
    assert (told[-1].text, told[-1].total) == ("MB of the model", 40)
    here = [e.done for e in told]
    assert here == sorted(here)
    assert here[-1] == 40
    told.clear()
    assert ctx.model_dir() == folder
    assert told == [], "the copy that is here is not asked about"


def test_a_stop_ends_the_download_and_the_same_command_goes_on(hub: Path, tmp_path: Path) -> None:
    wish, told = Wish(), []

    def tell(event: Event) -> None:
        told.append(event)
        wish.now = True

    with pytest.raises(Interrupted, match="the same command goes on"):
        context(tmp_path, tell, wish).model_dir()
    assert told
    folder = context(tmp_path, told.append, Wish()).model_dir()
    assert (folder / "model.safetensors").stat().st_size == 40_000_000


def test_a_run_keeps_the_copy_that_it_began_with(hub: Path, tmp_path: Path) -> None:
    """Another program may ask the hub meanwhile, and `main` there may have moved."""
    began = tmp_path / "began"
    began.mkdir()
    for name in FILES:
        (began / name).touch()
    manifest = {"config": {"model": {"path": "some/model"}}, "model": {"dir": str(began)}}
    (tmp_path / "night").mkdir()
    ctx = context(tmp_path / "night", lambda event: None, Wish())
    ctx.folder.manifest.write_text(json.dumps({"schema": 1, **manifest}))
    assert ctx.model_dir() == began
    (began / "model.safetensors").unlink()
    assert ctx.model_dir().is_relative_to(hub)


def test_a_copy_without_weights_is_no_model_where_no_hub_answers(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = context(tmp_path, lambda event: None, Wish()).model_dir()
    (whole / "model.safetensors").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=r"its download from the hub failed \(.*model.safetensors"):
        context(tmp_path, lambda event: None, Wish()).model_dir()


def test_a_full_disk_is_no_trouble_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(Shortage, match="no space left on this disk"):
        download("some/model")


def test_a_model_of_the_hub_is_asked_for_only_where_it_is_not_here(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer copy in the middle of a night would be another model."""
    with monkeypatch.context() as off:
        off.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(BadInput, match="its download from the hub failed"):
            hub_model("some/model")
    folder = hub_model("some/model")
    assert (folder / "model.safetensors").stat().st_size == 40_000_000
    (folder / "tokenizer_config.json").unlink()  # another program left it so
    assert (hub_model("some/model") / "tokenizer_config.json").is_file()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub_model("some/model") == folder


def test_ctrl_c_ends_a_commands_download_at_once(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall = _Stall()
    monkeypatch.setattr(_Hub, "stalls", stall)
    words = ["prove", str(tmp_path / "adapter"), "--model", "some/model"]
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "scripts.cli", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert stall.begun.wait(60)
        command.send_signal(signal.SIGINT)
        told = command.communicate(timeout=10)[1]
    finally:
        stall.over.set()
        command.kill()
        command.wait()
    assert command.returncode == Interrupted.exit_code
    assert told.endswith("error: stopped; the same command goes on from here\n")


@pytest.mark.parametrize("lacks", ["tokenizer_config.json", "model-2.safetensors"])
def test_a_copy_without_weights_or_tokenizer_is_not_whole(
    lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("config.json", "tokenizer_config.json", "model-1.safetensors", "model-2.safetensors")
    for name in names:
        (tmp_path / name).touch()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    assert hub_copy("some/model") == tmp_path
    (tmp_path / lacks).unlink()
    assert hub_copy("some/model") is None
