"""The engine: the vLLM servers of a run, usually one, from their start to their end.

A server is a session of its own, owned through the run's ledger, so that it
outlives the phase that started it and the next phase finds it again; those in engine.urls are the
person's, and are given adapters only. A phase names the adapter that it needs; the lifecycle
decides whether that takes nothing, a swap or a restart. An adapter is checked before it is loaded
and proven afterwards. Nothing here touches a process that the ledger does not own.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from fieldkit.errors import FieldkitError, Shortage, Unavailable
from fieldkit.files.atomic import take_lock
from fieldkit.gate import memory
from fieldkit.process.owned import Owned, is_running
from rollout.engine.addresses import addresses
from rollout.engine.admin import Admin
from rollout.engine.client import NoAnswer
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.forecast import servers_on_a_gpu, trainer_bytes
from rollout.engine.lifecycle import AUTO, LIFECYCLES, RESTART, has_room
from rollout.engine.outside import await_one, outside_servers, take_back
from rollout.engine.replica import Replica, entries_of
from rollout.engine.server import Progress, Server, api_key, silent, url
from rollout.engine.target import Served, Target, check_target

T = TypeVar("T")
Failure = Unavailable | Shortage

_ANSWER_SECONDS = 5.0  # of a request that a person waits for
_SILENT_SECONDS = 2.0  # of waiting for another program, after which that is said
_END_SECONDS = 60.0
"""How long an end waits for a program that starts or ends the same server, beyond the end's own
time."""


class AnyServer(Protocol):
    """One server as `ensure_engine` sees it: the run's own, or one in engine.urls."""

    def begin(self) -> None:
        """Serve the target in the cheapest way, or launch a server that will."""

    def finish(self) -> None:
        """Wait until it serves the target."""

    def prove(self) -> Served:
        """Prove the target's adapter."""


def _nothing() -> None:
    """What is done meanwhile where nothing is."""


MakeServer = Callable[[Path, EngineSettings, Progress, Target, Replica, Sequence[Server]], Server]
"""Makes one of a run's own servers: `Server` on this machine."""


def ensure_engine(
    run_dir: Path,
    model_dir: Path,
    settings: EngineSettings,
    adapter: Path | None,
    version: str,
    on_progress: Progress,
    *,
    keep: Mapping[str, Path] | None = None,
    make: MakeServer = Server,
    meanwhile: Callable[[], None] = _nothing,
) -> tuple[Served, ...]:
    """Make the run's servers serve `adapter` under the name `version`, and prove it on each.

    adapter None asks for the base model, which every server serves. keep: further adapters by name
    that the same servers are to serve as well (an evaluation's arms); others may be unloaded. Where
    a server serves all of them already, nothing happens. `version` must be new for new weights:
    prefixes of old weights are cached under the name. on_progress gets one line at a time. make:
    makes the run's own servers. meanwhile: called while those that had to be launched are loading,
    perhaps several times, and also where none had to be. Call it outside an event loop.

    Returns at least one server. One of several that cannot serve is left out, with a line to
    on_progress; it is tried again with the next call. Where none is left, those in engine.urls that
    do not answer are waited for as one that is alone. Raises `BadInput` for a bad adapter or model
    folder (before anything is touched), `Shortage` for too little memory and `Unavailable` for any
    other failure of all servers, with the reason of each.
    """
    began = time.monotonic()
    target = check_target(model_dir, settings, adapter, version, keep or {})
    there = addresses(settings)
    with _locked(run_dir, settings.start_seconds * settings.replicas, on_progress):
        own = [Replica(i, settings.replicas) for i in range(settings.replicas)]
        for replica in (Replica.named(e.name) for e in entries_of(run_dir)):
            if replica.index >= settings.replicas:
                Server(run_dir, settings, on_progress, replica=replica).stop()
        started: list[Server] = []
        started += (make(run_dir, settings, on_progress, target, r, started) for r in own)
        outside = outside_servers(run_dir, settings, target, there, on_progress)
        # vLLM measures what is free on its GPU while it loads, and fails where that changes.
        one_by_one = make is Server and servers_on_a_gpu(settings) > 1
        every: list[AnyServer] = [*started, *outside]
        served, failed = _serve_all(every, on_progress, meanwhile, one_by_one=one_by_one)
        away = [server for server in outside if isinstance(failed.get(server), NoAnswer)]
        if not served and away and len(failed) > 1:
            try:
                await_one(away, on_progress)
            except Unavailable as e:
                others = [why for server, why in failed.items() if server not in away]
                raise _together([*others, e]) from None
            served, later = _serve_all(away, on_progress, one_by_one=False)
            failed |= later
        if not served:
            raise _together([*failed.values()])
        seconds = time.monotonic() - began
        return tuple(replace(s, seconds=seconds) for s in served)


def _serve_all(
    servers: Sequence[AnyServer],
    on_progress: Progress,
    meanwhile: Callable[[], None] = _nothing,
    *,
    one_by_one: bool,
) -> tuple[list[Served], dict[AnyServer, Failure]]:
    """Those that serve the target, and why the others do not. All are begun before one is waited
    for, unless one_by_one. meanwhile: as `ensure_engine`'s."""
    left = list(servers)
    failed: dict[AnyServer, Failure] = {}

    def each(do: Callable[[AnyServer], T]) -> list[T]:
        done = []
        for server in tuple(left):
            try:
                done.append(do(server))
            except (Unavailable, Shortage) as e:
                failed[server] = e
                left.remove(server)
                if left:
                    on_progress(f"engine: one server less, because {e}")
        return done

    def start(server: AnyServer) -> None:
        server.begin()
        meanwhile()
        server.finish()

    if one_by_one:
        each(start)
    else:
        each(lambda server: server.begin())
        meanwhile()
        each(lambda server: server.finish())
    return each(lambda server: server.prove()), failed


def _together(failures: Sequence[Failure]) -> Failure:
    """One error for all of them: a shortage where one is, which may pass."""
    if len(failures) == 1:
        return failures[0]
    short = any(isinstance(e, Shortage) for e in failures)
    return (Shortage if short else Unavailable)("; ".join(dict.fromkeys(map(str, failures))))


def release_memory(
    run_dir: Path, settings: EngineSettings, on_progress: Progress = silent, *, held: int = 0
) -> None:
    """Make room for the trainer by the lifecycle of each of the run's own servers.

    held: bytes that a trainer holds already of what it needs. Under `auto` a server that keeps its
    memory is ended all the same where memory has become short. Raises `Shortage` naming the largest
    holders if the memory does not come back.
    """
    entries = entries_of(run_dir)
    if not entries:
        return
    asked = settings.lifecycle
    need = max(int(e.info["trainer_bytes"]) for e in entries)
    if need and settings.trainer_gib is not None:  # it may have changed since they started
        need = trainer_bytes(settings)
    room = has_room(memory.available(), need - held)
    with _locked(run_dir, settings.stop_seconds + _END_SECONDS, on_progress):
        for owned in entries:
            name = owned.info.get("lifecycle", RESTART.name) if asked == AUTO else asked
            used = LIFECYCLES.named(name)
            if asked == AUTO and used.keeps_memory and not room:
                used = RESTART
            replica = Replica.named(owned.name)
            used.release(Server(run_dir, settings, on_progress, replica=replica))


def stop_engine(
    run_dir: Path, settings: EngineSettings | None = None, on_progress: Progress = silent
) -> int:
    """End the run's own servers and everything they started, and wait until their memory is back.

    What a killed server left is ended too, and those in engine.urls unload what the run gave them.
    Returns the number of processes, 0 without a server.
    Raises `Shortage` if the memory does not come back, `Unavailable` if a process does not end; the
    other servers are ended all the same.
    """
    settings = settings or EngineSettings()
    ended, failures = 0, []
    with _locked(run_dir, settings.stop_seconds + _END_SECONDS, on_progress):
        # The first one also without an entry: what stays beside it ends with it.
        others = [r for e in entries_of(run_dir) if (r := Replica.named(e.name)).index]
        for replica in (Replica(), *others):
            try:
                server = Server(run_dir, settings, on_progress, replica=replica)
                ended += server.stop(at_end=True)
            except (FieldkitError, OSError) as e:
                failures.append(e)
        take_back(run_dir, settings, on_progress)
    if failures:
        raise failures[0]
    return ended


def find_engine(run_dir: Path) -> Owned | None:
    """The ledger's entry of the first of the run's own servers that is running now; None without
    one."""
    return next(iter(find_servers(run_dir)), None)


def find_servers(run_dir: Path) -> tuple[Owned, ...]:
    """The ledger's entries of all of them."""
    return tuple(e for e in entries_of(run_dir) if is_running(e))


def served_names(owned: Owned) -> list[str] | None:
    """Names that a run's own server lists; None where it does not answer within seconds."""
    with Admin(url(owned), api_key(owned), _ANSWER_SECONDS) as admin:
        models = admin.models()
    return None if models is None else list(models)


@contextlib.contextmanager
def _locked(run_dir: Path, seconds: float, on_progress: Progress) -> Iterator[None]:
    """Keep two programs from starting or stopping the same run's server at once.

    Waits for the other one for so many seconds at most; raises `Unavailable` after them.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path, told = run_dir / "engine.lock", False

    def waiting(waited: float) -> None:
        nonlocal told
        if waited > seconds:
            raise Unavailable(
                f"{path}: another program has been starting or ending this run's server for"
                f" {waited:.0f} s, and may hang; `fuser {shlex.quote(str(path))}` names it; run"
                " the same command again when it has ended"
            )
        if waited > _SILENT_SECONDS and not told:
            told = True
            on_progress("waiting for another program that starts or ends this run's server")

    with open(path, "ab+") as f:
        take_lock(f.fileno(), waiting)
        yield
