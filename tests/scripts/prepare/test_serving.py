"""`grpo serve` is the other end of engine.urls: a run needs only what it prints."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fieldkit.files.journal import Journal
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned, family
from rollout.engine.api_key import MIDDLEWARE
from rollout.engine.port import HOST, free_port
from rollout.engine.serve import stop_engine
from scripts.base.checkout import ROOT
from scripts.prepare.presets import preset_config
from scripts.prepare.serving import OFFERED, Offer
from scripts.run.memory_account import FORECAST
from tests.chaos.night import SITE
from tests.rollout.envs.foreign.gone import wait_until_gone
from tests.scripts.cli.in_process import grpo
from tests.scripts.night.running import Night, as_from_a_terminal
from tests.tiny_model import make_adapter
from tests.tiny_policy import write_run

KEY = "the-key"
SETTINGS = ("engine.dtype=float32", "engine.kv_cache_gib=0.25", "engine.max_model_len=512")


@dataclass(frozen=True)
class Serving:
    """A `grpo serve` at work. keys: what it printed."""

    process: subprocess.Popen[str]
    port: int
    keys: dict[str, Any]
    said: Path

    @property
    def entry(self) -> Owned:
        """Its server, in the ledger."""
        (entry,) = Ledger(folder_of(self.port) / LEDGER_FILE).entries()
        return entry

    @property
    def server(self) -> psutil.Process:
        return psutil.Process(self.entry.pid)


def folder_of(port: int) -> Path:
    return ROOT / "runs" / f"served-{socket.gethostname()}-{port}"


def words_of(policy: tuple[Path, Path], port: int) -> list[str]:
    model, adapter = policy
    settings = [word for s in SETTINGS for word in ("--set", s)]
    where = ["--model", str(model), "--adapter", str(adapter), "--port", str(port)]
    return ["serve", *where, *settings]


@contextmanager
def serving(policy: tuple[Path, Path], folder: Path, *more: str) -> Iterator[Serving]:
    """`grpo serve` until its server is proven; killed on leaving if it is still there."""
    port, said = free_port(0), folder / "said"
    env = {"PYTHONPATH": str(SITE), "VLLM_API_KEY": KEY}
    with as_from_a_terminal(), open(said, "ab") as err:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scripts.cli", *words_of(policy, port), *more],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(5)]
        assert lines[-1], said.read_text()
        yield Serving(process, port, tomllib.loads("".join(lines)), said)
    finally:
        process.kill()
        process.communicate()
        stop_engine(folder_of(port))
        shutil.rmtree(folder_of(port), ignore_errors=True)


@pytest.fixture(scope="module")
def served(
    policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """One that no test ends."""
    with serving(policy, tmp_path_factory.mktemp("served")) as one:
        yield one


def test_a_run_with_the_printed_lines_plays_and_trains_on_it(
    policy: tuple[Path, Path], tmp_path: Path, served: Serving
) -> None:
    assert f"{OFFERED} is loaded" in served.said.read_text()
    shared = tmp_path / "shared"
    shared.mkdir()
    engine = {**served.keys, "shared": str(shared)}
    night = Night(write_run(tmp_path / "night", *policy, run={"steps": 1}, engine=engine))
    night.env["VLLM_API_KEY"] = KEY
    assert night.run() == 0, night.said
    journal = Journal(night.folder.journal).read()
    assert [e.data["engine"] for e in journal if e.event == FORECAST] == [False]
    assert f"engine http://{HOST}:{served.port}: night-v1" in night.said
    assert Ledger(night.folder.ledger).entries() == []


def test_it_asks_every_caller_for_the_key(served: Serving) -> None:
    url = f"http://{HOST}:{served.port}/v1/models"
    assert httpx.get(url).status_code == httpx.codes.UNAUTHORIZED
    known = httpx.get(url, headers={"Authorization": f"Bearer {KEY}"})
    assert known.status_code == httpx.codes.OK
    assert OFFERED in known.text
    words = served.entry.command  # the double has a check of its own, vLLM this one
    assert words[words.index("--middleware") + 1] == MIDDLEWARE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_it_and_its_server(
    policy: tuple[Path, Path], tmp_path: Path, number: signal.Signals
) -> None:
    with serving(policy, tmp_path) as served:
        server = served.server
        served.process.send_signal(number)
        assert served.process.wait() == 0, served.said.read_text()
        assert not server.is_running()
        assert not folder_of(served.port).exists()


def test_a_kill_of_it_ends_its_server_too(policy: tuple[Path, Path], tmp_path: Path) -> None:
    with serving(policy, tmp_path) as served:
        server = served.server
        served.process.kill()
        wait_until_gone(server)


def test_where_its_server_ends_it_ends_with_exit_4_and_names_the_log(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    with serving(policy, tmp_path) as served:
        entry = served.entry
        for pid in family(entry.marker):
            os.kill(pid, signal.SIGKILL)
        assert served.process.wait() == 4
        assert f"error: the server has ended. Its log: {entry.log}" in served.said.read_text()
        assert Path(entry.log).is_file()


def test_a_second_one_at_the_port_is_refused_and_the_first_goes_on(
    policy: tuple[Path, Path], served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    ended = grpo(*words_of(policy, served.port))
    assert ended.code == 6
    told = f"another `grpo serve` has port {served.port}: `kill {served.process.pid}` ends it"
    assert told in ended.error
    assert served.server.is_running()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)


@pytest.mark.usefixtures("own")
def test_what_cannot_be_served_is_refused_before_anything_starts(
    policy: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*more: str) -> str:
        ended = grpo(*words_of(policy, free_port(0)), *more)
        assert ended.code == 2, ended
        assert "starting vLLM" not in ended.error
        return ended.error

    assert "--set engine.replicas: " in refused("--set", "engine.replicas=2")
    assert "--host gpu-box: no IP address" in refused("--host", "gpu-box")
    assert "--host : no IP address" in refused("--host", "")
    other = make_adapter(tmp_path / "other", policy[0], rank=1000)
    assert "vLLM serves at most 512" in refused("--adapter", str(other))
    assert "no model folder there" in refused("--model", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "two words")
    assert "--key-from: what VLLM_API_KEY holds is no key" in refused()
    monkeypatch.delenv("VLLM_API_KEY")
    assert "no key is there; `export VLLM_API_KEY=$(openssl rand -hex 16)` makes one" in refused()
    empty = tmp_path / "key"
    empty.write_text("\n")
    makes = f"`(umask 077; openssl rand -hex 16 > {empty})` makes one"
    assert makes in refused("--key-from", str(empty))
    assert "--key-from: /nowhere/key: No such file" in refused("--key-from", "/nowhere/key")


@pytest.mark.usefixtures("own")
def test_an_address_that_is_none_of_this_machine_is_named(policy: tuple[Path, Path]) -> None:
    port = free_port(0)
    ended = grpo(*words_of(policy, port), "--host", "192.0.2.77")
    shutil.rmtree(folder_of(port))
    assert ended.code == 2
    assert "192.0.2.77: no address of this machine" in ended.error


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("10.0.0.2", "http://10.0.0.2:8000"),
        ("fd00::2", "http://[fd00::2]:8000"),
        ("0.0.0.0", f"http://{socket.gethostname()}:8000"),
        ("::", f"http://{socket.gethostname()}:8000"),
    ],
)
def test_the_lines_name_the_address_that_another_machine_knows(
    policy: tuple[Path, Path], host: str, named: str
) -> None:
    config = preset_config("smol", [f"model.adapter={policy[1]}", "engine.dtype=float16"])
    own = str(Path("~/key").expanduser())
    offer = Offer.of(config, policy[0], host=host, port=8000, key=KEY, key_from=own)
    assert tomllib.loads(offer.lines) == {
        "replicas": 0,
        "urls": [named],
        "keys_from": ["~/key"],
        "dtype": "float16",
        "max_model_len": 2048,
    }
    assert KEY not in repr(offer)


@pytest.mark.usefixtures("own")
def test_a_port_that_another_program_has_is_named_with_it(policy: tuple[Path, Path]) -> None:
    with socket.create_server((HOST, 0)) as held:
        port = held.getsockname()[1]
        ended = grpo(*words_of(policy, port))
        shutil.rmtree(folder_of(port))
    assert ended.code == 4
    assert f"held by pid {os.getpid()}" in ended.error
