"""The engine: one vLLM server for each run, from its start to its end.

The server is a session of its own, owned through the run's ledger, so that it outlives the phase
that started it and the next phase finds it again. A phase names the adapter that it needs; the
lifecycle decides whether that takes nothing, a swap or a restart. An adapter is checked before it
is loaded and proven afterwards. Nothing here touches a process that the ledger does not own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import Unavailable
from fieldkit.files.atomic import locked
from fieldkit.gate import memory
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned, is_running
from rollout.engine.admin import Admin
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.lifecycle import AUTO, LIFECYCLES, RESTART, has_room
from rollout.engine.proof import Proof
from rollout.engine.server import ENGINE, Progress, Server, api_key, url
from rollout.engine.target import check_target

_ANSWER_SECONDS = 5.0  # of a request that a person waits for


def _silent(line: str) -> None:
    """Drop a line of progress."""


@dataclass(frozen=True)
class Served:
    """A server that serves the target.

    model_name: the name to request ("base" without an adapter). pid: the API server's.
    lifecycle and reason: how the next adapter will reach it (by name), and why.
    proof: of the adapter, if this call made it; None for the base and where it was proven before.
    seconds: duration of this call.
    """

    base_url: str
    api_key: str
    model_name: str
    adapter_sha: str | None
    pid: int
    lifecycle: str
    reason: str
    proof: Proof | None
    seconds: float


def ensure_engine(
    run_dir: Path,
    model_dir: Path,
    settings: EngineSettings,
    adapter: Path | None,
    version: str,
    on_progress: Progress,
    *,
    keep: Mapping[str, Path] | None = None,
) -> Served:
    """Make the run's server serve `adapter` under the name `version`, and prove it.

    adapter None asks for the base model, which every server serves. keep: further adapters by name
    that the same server is to serve as well (an evaluation's arms); others may be unloaded. Where
    the server serves all of them already, nothing happens. `version` must be new for new weights:
    prefixes of old weights are cached under the name. on_progress gets one line at a time. Call it
    outside an event loop. Raises `BadInput` for a bad adapter or model folder (before anything is
    touched), `Shortage` for too little memory and `Unavailable` for any other failure.
    """
    began = time.monotonic()
    target = check_target(model_dir, settings, adapter, version, keep or {})
    with _locked(run_dir):
        engine = Server(run_dir, settings, on_progress, target)
        engine.bring()
        try:
            proof = engine.prove()
        except Unavailable as e:
            on_progress(f"engine: trying once with a fresh server, because {e}")
            engine.bring()
            proof = engine.prove()
        return _served(engine, proof, time.monotonic() - began)


def _served(server: Server, proof: Proof | None, seconds: float) -> Served:
    target, owned = server.target, server.owned
    info = target.adapters.get(target.name)
    assert owned.pid is not None  # `Server.owned` raises instead
    return Served(
        base_url=url(owned),
        api_key=api_key(owned),
        model_name=target.name,
        adapter_sha=None if info is None else info.sha,
        pid=owned.pid,
        lifecycle=owned.info["lifecycle"],
        reason=owned.info["reason"],
        proof=proof,
        seconds=seconds,
    )


def release_memory(
    run_dir: Path, settings: EngineSettings, on_progress: Progress = _silent, *, held: int = 0
) -> None:
    """Make room for the trainer by the server's lifecycle.

    held: bytes that a trainer holds already of what it needs. Under `auto` a server that keeps its
    memory is ended all the same where memory has become short. Raises `Shortage` naming the largest
    holders if the memory does not come back.
    """
    owned = Ledger(run_dir / LEDGER_FILE).get(ENGINE)
    if owned is None:
        return
    asked = settings.lifecycle
    name = owned.info.get("lifecycle", RESTART.name) if asked == AUTO else asked
    used = LIFECYCLES.named(name)
    room = has_room(memory.available(), int(owned.info["trainer_bytes"]) - held)
    if asked == AUTO and used.keeps_memory and not room:
        used = RESTART
    with _locked(run_dir):
        used.release(Server(run_dir, settings, on_progress))


def stop_engine(
    run_dir: Path, settings: EngineSettings | None = None, on_progress: Progress = _silent
) -> int:
    """End the run's server and everything it started, and wait until its memory is back.

    What a killed server left is ended too. Returns the number of processes, 0 without a server.
    Raises `Shortage` if the memory does not come back, `Unavailable` if a process does not end.
    """
    with _locked(run_dir):
        return Server(run_dir, settings or EngineSettings(), on_progress).stop()


def find_engine(run_dir: Path) -> Owned | None:
    """The ledger's entry of a server that is running now; None without one."""
    owned = Ledger(run_dir / LEDGER_FILE).get(ENGINE)
    return owned if owned is not None and is_running(owned) else None


def served_names(run_dir: Path) -> list[str] | None:
    """Names that the run's server lists; None where it does not answer within seconds."""
    owned = find_engine(run_dir)
    if owned is None:
        return None
    with Admin(url(owned), api_key(owned), _ANSWER_SECONDS) as admin:
        models = admin.models()
    return None if models is None else list(models)


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Keep two programs from starting or stopping the same run's server at once."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir / "engine.lock"):
        yield
