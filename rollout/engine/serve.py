"""The engine's life: one vLLM server a run, serving the adapter that is asked for, and its end.

The server is a session of its own, owned through the run's ledger, so that it outlives the phase
that started it and the next phase finds it again. Whoever needs an adapter says which; whether that
means nothing, a swap or a restart is the lifecycle's to say. An adapter is checked before it is
loaded and proven after. Nothing here touches a process that the ledger does not own.
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
from rollout.engine.lifecycle import AUTO, RESTART, has_room, lifecycle
from rollout.engine.proof import Proof
from rollout.engine.server import ENGINE, Progress, Server, api_key, url
from rollout.engine.target import check_target

_ANSWER_SECONDS = 5.0  # for a question that a person waits for


@dataclass(frozen=True)
class Served:
    """A server that serves what was asked for.

    model_name: what to ask it for ("base" without an adapter). pid: the API server's.
    lifecycle and reason: how the next adapter will reach it (by name), and why that way.
    proof: of the adapter, if this call made it; None for the base and where it was proven before.
    seconds: what this call took.
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
    that the same server is to serve as well (an evaluation's arms); others may be unloaded. Nothing
    happens when all that stands already. `version` must be new for new weights: prefixes of old
    weights are cached under the name. on_progress gets one line at a time. Call outside an event
    loop. Raises `BadInput` for a bad adapter or model folder (before anything is touched),
    `Shortage` for too little memory and `Unavailable` for everything else that fails.
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
    assert owned.pid is not None  # `owned` holds no other
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
    run_dir: Path, settings: EngineSettings, on_progress: Progress | None = None
) -> None:
    """Make room for the trainer, as the server's lifecycle has it.

    One whose server keeps its memory gives it back all the same where the lifecycle is auto and
    memory has become short. Raises `Shortage` naming the largest holders if it does not come back.
    """
    owned = Ledger(run_dir / LEDGER_FILE).get(ENGINE)
    if owned is None:
        return
    asked = settings.lifecycle
    used = lifecycle(owned.info.get("lifecycle", RESTART.name) if asked == AUTO else asked)
    room = has_room(memory.available(), int(owned.info["trainer_bytes"]))
    if asked == AUTO and used.keeps_memory and not room:
        used = RESTART
    with _locked(run_dir):
        used.release(Server(run_dir, settings, on_progress or _silent))


def stop_engine(
    run_dir: Path,
    settings: EngineSettings | None = None,
    on_progress: Progress | None = None,
) -> int:
    """End the run's server with everything it started, and wait until its memory is back.

    What a killed server left is ended too. Returns how many processes there were; no-op without
    one. Raises `Shortage` if the memory stays away, `Unavailable` if a process does.
    """
    with _locked(run_dir):
        return Server(run_dir, settings or EngineSettings(), on_progress or _silent).stop()


def find_engine(run_dir: Path) -> Owned | None:
    """The ledger's entry of a server that is running now; None without one."""
    owned = Ledger(run_dir / LEDGER_FILE).get(ENGINE)
    return owned if owned is not None and is_running(owned) else None


def served_names(run_dir: Path) -> list[str] | None:
    """What the run's server says that it serves; None where it does not answer within seconds."""
    owned = find_engine(run_dir)
    if owned is None:
        return None
    with Admin(url(owned), api_key(owned), _ANSWER_SECONDS) as admin:
        models = admin.models()
    return None if models is None else list(models)


def _silent(line: str) -> None:
    """Nobody listens."""


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Keep two programs from starting or stopping the same run's server at once."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir / "engine.lock"):
        yield
