"""The engine's life: one vLLM server a run, serving the wanted adapter, and its end.

The server is a session of its own, owned through the run's ledger, so that it outlives the phase
that started it and the next phase finds it again. Whoever needs an adapter says which; whether that
means nothing, a swap or a restart is decided here. An adapter is checked before it is loaded and
proven after. Nothing here touches a process that the ledger does not own.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.errors import FieldkitError, Unavailable
from fieldkit.gate import memory
from fieldkit.gate.patience import Patience
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned, environment, family, is_running, terminate, wait_ended
from fieldkit.process.shared_memory import shared_files
from rollout.engine import vllm_server
from rollout.engine.admin import Admin
from rollout.engine.client import EngineClient
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.leftovers import Leftovers, held_note, new_scratch, to_come_back
from rollout.engine.lifecycle import Lifecycle, decide, has_room, trainer_bytes
from rollout.engine.port import HOST, free_port
from rollout.engine.proof import Proof, prove
from rollout.engine.target import Wanted, check_wanted
from rollout.engine.vllm_server import API_KEY_VARIABLE, BASE_NAME, LoraShape

ENGINE = "engine"
"""The name of its entry in the ledger."""

_ANSWER_SECONDS = 5.0  # for a question that a person waits for
_READY_POLL_SECONDS = 0.5  # between two questions; the server's death ends the wait at once
_READY_ANSWER_SECONDS = 10.0  # for each of the two requests of such a question
_LONGEST_LOOK_SECONDS = 30.0  # for the question and the pause after it; more was a standstill
_PROGRESS_SECONDS = 15.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Served:
    """A server that serves what was asked for.

    model_name: what to ask it for ("base" without an adapter). pid: the API server's.
    lifecycle and reason: how the next adapter will reach it, and why that way.
    proof: of the adapter, if this call made it; None for the base and where it was proven before.
    seconds: what this call took.
    """

    base_url: str
    api_key: str
    model_name: str
    adapter_sha: str | None
    pid: int
    lifecycle: Lifecycle
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
    wanted = check_wanted(model_dir, settings, adapter, version, keep or {})
    with _locked(run_dir):
        engine = _Engine(run_dir, settings)
        engine.bring(wanted, on_progress)
        try:
            proof = engine.prove(wanted, on_progress)
        except Unavailable as e:
            on_progress(f"engine: trying once with a fresh server, because {e}")
            engine.bring(wanted, on_progress)
            proof = engine.prove(wanted, on_progress)
        return engine.served(wanted, proof, time.monotonic() - began)


def release_memory(
    run_dir: Path, settings: EngineSettings, on_progress: Progress | None = None
) -> None:
    """Make room for the trainer: stop the server where its lifecycle is restart.

    Does nothing for a hot-swapped server, unless the lifecycle is auto and memory has become
    short. Raises `Shortage` naming the largest holders if the memory does not come back.
    """
    owned = Ledger(run_dir / LEDGER_FILE).get(ENGINE)
    if owned is None:
        return
    asked = settings.lifecycle
    lifecycle = owned.info.get("lifecycle", Lifecycle.RESTART) if asked == "auto" else asked
    room = has_room(memory.available(), int(owned.info["trainer_bytes"]))
    if lifecycle == Lifecycle.RESTART or (asked == "auto" and not room):
        stop_engine(run_dir, settings, on_progress)


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
        engine = _Engine(run_dir, settings or EngineSettings())
        return engine.stop(on_progress or (lambda line: None))


def find_engine(run_dir: Path) -> Owned | None:
    """The ledger's entry of a server that is running now; None without one."""
    owned = Ledger(run_dir / LEDGER_FILE).get(ENGINE)
    return owned if owned is not None and is_running(owned) else None


def served_names(run_dir: Path) -> list[str] | None:
    """What the run's server says that it serves; None where it does not answer within seconds."""
    owned = find_engine(run_dir)
    if owned is None:
        return None
    with Admin(_url(owned), _api_key(owned), _ANSWER_SECONDS) as admin:
        models = admin.models()
    return None if models is None else list(models)


class _Engine:
    """The server of one run folder, as the ledger knows it. Used under the run's engine lock."""

    def __init__(self, run_dir: Path, settings: EngineSettings) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.ledger = Ledger(run_dir / LEDGER_FILE)

    # -- what there is -------------------------------------------------------------------------

    @property
    def owned(self) -> Owned:
        owned = self.ledger.get(ENGINE)
        if owned is None or owned.pid is None:
            raise Unavailable(f"{self.ledger.path}: the engine is gone; run the same command again")
        return owned

    def admin(self) -> Admin:
        owned = self.owned
        return Admin(_url(owned), _api_key(owned))

    def note(self, **info: Any) -> None:
        """Add to what the ledger remembers of the server."""
        owned = self.owned
        self.ledger.record(replace(owned, info={**owned.info, **info}))

    # -- bringing it to where it should be -----------------------------------------------------

    def bring(self, wanted: Wanted, on_progress: Progress) -> None:
        """Serve what is wanted by the cheapest way."""
        if self._usable(wanted, on_progress):
            self._swap(wanted, on_progress)
        else:
            self.stop(on_progress)
            self._start(wanted, on_progress)

    def _usable(self, wanted: Wanted, on_progress: Progress) -> bool:
        """Whether the server that the ledger names can come to serve what is wanted."""
        owned = self.ledger.get(ENGINE)
        if owned is None or not is_running(owned):
            return False
        info = owned.info
        if info["fingerprint"] != wanted.fingerprint():
            return False
        loaded: dict[str, str] = info["loaded"]
        if any(loaded.get(n, a.sha) != a.sha for n, a in wanted.adapters.items()):
            return False  # the name was used for other weights, whose prefixes may be cached
        try:
            models = self._await_ready(owned, on_progress)
            lifecycle = self._decide(wanted)
        except Unavailable as e:
            on_progress(f"engine: the running server is of no use ({e})")
            return False
        if set(wanted.adapters) <= set(models):
            return True
        shape = info["lora"] and LoraShape(info["lora"]["rank"], tuple(info["lora"]["targets"]))
        fits = shape and all(shape.covers(a) for a in wanted.adapters.values())
        return bool(fits) and lifecycle is Lifecycle.HOTSWAP

    def _start(self, wanted: Wanted, on_progress: Progress) -> None:
        on_progress("engine: starting vLLM")
        began = time.monotonic()
        self._require_memory(wanted)
        port = free_port(self.settings.port)
        scratch = new_scratch()
        shape = wanted.shape
        owned = self.ledger.launch(
            ENGINE,
            vllm_server.command(wanted.model_dir, self.settings, shape, wanted.paths, port),
            env=vllm_server.environment(self.settings, secrets.token_urlsafe(24), scratch),
            # Not the caller's folder: `python -m` would import from it.
            cwd=scratch,
            log=self.run_dir / "log" / f"engine-{time.strftime('%Y%m%d-%H%M%S')}.log",
            info={
                "port": port,
                "scratch": str(scratch),
                "fingerprint": wanted.fingerprint(),
                "lora": shape and {"rank": shape.rank, "targets": list(shape.targets)},
                "loaded": {name: a.sha for name, a in wanted.adapters.items()},
                "trainer_bytes": trainer_bytes(self.settings),
            },
        )
        try:
            models = self._await_ready(owned, on_progress)
            if missing := set(wanted.adapters) - set(models):
                raise Unavailable(f"the server does not list {', '.join(sorted(missing))}")
            self._decide(wanted)
            self._note_held()
        except FieldkitError as e:
            tail = vllm_server.last_error(Path(owned.log))
            self.stop(on_progress)
            raise Unavailable(f"vLLM did not start: {e}. {tail}Its log: {owned.log}") from e
        on_progress(f"engine: ready after {time.monotonic() - began:.0f} s")

    def _require_memory(self, wanted: Wanted) -> None:
        gpu_total = memory.gpu_total()
        memory.wait_until_available(
            vllm_server.memory_needed(wanted.model_dir, self.settings),
            None if gpu_total is None else int(gpu_total * self.settings.gpu_memory_utilization),
            seconds=self.settings.memory_seconds,
            what="starting the engine",
        )

    def _await_ready(self, owned: Owned, on_progress: Progress) -> dict[str, str]:
        """Wait until the server answers; the names it serves. Its death ends the wait."""
        patience = Patience(self.settings.start_seconds, _LONGEST_LOOK_SECONDS)
        said = 0.0
        with Admin(_url(owned), _api_key(owned), _READY_ANSWER_SECONDS) as admin:
            while (models := self._look(admin, owned)) is None:
                if patience.over():
                    raise Unavailable(f"no answer within {patience.seconds:.0f} s")
                if patience.spent - said >= _PROGRESS_SECONDS:
                    said = patience.spent
                    on_progress(f"engine: loading, {patience.spent:.0f} s")
                if wait_ended(owned, _READY_POLL_SECONDS):
                    raise Unavailable("the process ended")
        return models

    def _look(self, admin: Admin, owned: Owned) -> dict[str, str] | None:
        """What it serves; None while it does not answer. Notes what is its own in the meantime."""
        models = admin.models()
        noted: dict[str, int] = self.owned.info.get("shared", {})
        shared = {**noted, **shared_files(family(owned.marker))}
        if shared != noted:
            self.note(shared=shared)
        return models

    def _note_held(self) -> None:
        """Note what the server holds: once it has been killed that can no longer be measured."""
        self.note(held=held_note(family(self.owned.marker)))

    def _swap(self, wanted: Wanted, on_progress: Progress) -> None:
        """Load what is wanted and not there; then unload what is not wanted."""
        loaded: dict[str, str] = dict(self.owned.info["loaded"])
        with self.admin() as admin:
            models = admin.models() or {}
            missing = {n: a for n, a in wanted.adapters.items() if n not in models}
            for name, info in missing.items():
                on_progress(f"engine: loading adapter {name}")
                # Written first: a name that may have been loaded is not used for other weights.
                loaded[name] = info.sha
                self.note(loaded=loaded)
                admin.load(name, info.path)
            if missing:
                served = admin.models() or {}
                if not set(wanted.adapters) <= set(served):
                    raise Unavailable(
                        f"{_url(self.owned)} does not list {', '.join(sorted(missing))} after "
                        f"loading; its log: {self.owned.log}"
                    )
                for name in set(served) - set(wanted.adapters) - {BASE_NAME}:
                    admin.unload(name)
                self._note_held()

    def _decide(self, wanted: Wanted) -> Lifecycle:
        """Settle the lifecycle once for this server (again only where the setting changed)."""
        info = self.owned.info
        if info.get("asked") == self.settings.lifecycle:
            return Lifecycle(info["lifecycle"])
        with self.admin() as admin:
            decision = decide(
                self.settings,
                can_swap=admin.can_swap(),
                available=memory.available(),
                trainer=trainer_bytes(self.settings),
            )
        self.note(
            asked=self.settings.lifecycle,
            lifecycle=decision.lifecycle.value,
            reason=decision.reason,
        )
        return decision.lifecycle

    # -- what it serves ------------------------------------------------------------------------

    def prove(self, wanted: Wanted, on_progress: Progress) -> Proof | None:
        """Prove the adapter that was asked for, once; None for the base and for one proven before.

        A server that fails the proof is stopped, so that the next try has a fresh one.
        """
        info = wanted.adapters.get(wanted.name)
        owned = self.owned
        proven: list[str] = owned.info.get("proven", [])
        if info is None or wanted.name in proven:
            return None
        client = EngineClient(_url(owned), _api_key(owned), wanted.name)
        try:
            proof = prove(client, info.path, info.sha)
        except FieldkitError:
            self.stop(on_progress)
            raise
        self.note(proven=[*proven, wanted.name])
        on_progress(f"engine: {wanted.name} {proof.verdict}: {proof.detail}")
        return proof

    def served(self, wanted: Wanted, proof: Proof | None, seconds: float) -> Served:
        owned = self.owned
        assert owned.pid is not None  # `owned` holds no other
        info = wanted.adapters.get(wanted.name)
        return Served(
            base_url=_url(owned),
            api_key=_api_key(owned),
            model_name=wanted.name,
            adapter_sha=None if info is None else info.sha,
            pid=owned.pid,
            lifecycle=Lifecycle(owned.info["lifecycle"]),
            reason=owned.info["reason"],
            proof=proof,
            seconds=seconds,
        )

    # -- its end -------------------------------------------------------------------------------

    def stop(self, on_progress: Progress) -> int:
        """End the server, its children and its leftovers, and see the memory come back.

        Returns how many processes there were.
        """
        owned = self.ledger.get(ENGINE)
        if owned is None:
            return 0
        pids = family(owned.marker)
        if pids:
            on_progress("engine: stopping")
        leftovers = Leftovers.of(pids, owned.info)
        margin = int(self.settings.memory_margin_gib * memory.GIB)
        reclaim = to_come_back(owned, pids, margin)
        terminate(owned, self.settings.stop_seconds)
        leftovers.remove()
        self.ledger.forget(ENGINE)
        reclaim.wait(
            margin=margin,
            seconds=self.settings.memory_seconds,
            what="waiting for the engine's memory to come back",
        )
        return len(pids)


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Keep two programs from starting or stopping the same run's server at once."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / "engine.lock", "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _url(owned: Owned) -> str:
    return f"http://{HOST}:{owned.info['port']}"


def _api_key(owned: Owned) -> str:
    """Read from the server's own environment, so that the key is on no disk."""
    return environment(owned.pid or 0).get(API_KEY_VARIABLE, "")
