"""A vLLM server of one run folder, as the run's ledger describes it: start, adapters and end.

A lifecycle works with it. `rollout.engine.serve` holds the lock and knows what a phase needs.
Nothing here touches a process that the ledger does not own.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldkit.errors import FieldkitError, Unavailable
from fieldkit.gate import memory
from fieldkit.gate.patience import Patience
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned, environment, family, is_running, terminate, wait_ended
from fieldkit.process.shared_memory import shared_files
from rollout.engine import forecast, preload, vllm_server
from rollout.engine.admin import Admin
from rollout.engine.client import EngineClient
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.leftovers import (
    BESIDE,
    Leftovers,
    end_beside,
    forget_ended,
    held_note,
    new_scratch,
    to_come_back,
)
from rollout.engine.lifecycle import LIFECYCLES, Lifecycle, decide
from rollout.engine.port import EVERYWHERE, HOST, address, free_port
from rollout.engine.proof import Proof, prove
from rollout.engine.replica import Replica
from rollout.engine.target import Served, Target
from rollout.engine.vllm_server import API_KEY_VARIABLE, BASE_NAME, LoraShape

_READY_POLL_SECONDS = 0.2  # between two polls; the server's death ends the wait at once
_READY_ANSWER_SECONDS = 10.0  # for each of a poll's two requests
_LONGEST_LOOK_SECONDS = 30.0  # for a poll and the pause after it; more was a standstill
_PROGRESS_SECONDS = 15.0

_SLEEPS, _FOUND_FREE = "sleeps_for_now", "found_free"
"""Notes on a server: `preload.sleeps_for_now`, and for which adapters in turn the cores were free
since."""

_ONLY = Replica()

Progress = Callable[[str], None]


def silent(line: str) -> None:
    """Drop a line of progress."""


class Server:
    """One server of a run folder. Use it under the run's engine lock.

    target: what to serve; None for a caller that only stops it or makes room. beside: the run's
    other servers, which may be starting at the same time. host: the address that it listens at.
    key: its API key; "" makes a new one at each start.
    """

    def __init__(
        self,
        run_dir: Path,
        settings: EngineSettings,
        on_progress: Progress,
        target: Target | None = None,
        replica: Replica = _ONLY,
        beside: Sequence[Server] = (),
        *,
        host: str = HOST,
        key: str = "",
    ) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.ledger = Ledger(run_dir / LEDGER_FILE)
        self.replica = replica
        self.beside = beside
        self._on_progress = on_progress
        self._target = target
        self._host, self._key = host, key
        self._began: float | None = None  # when its process was launched, until it is ready
        self._started_anew = False  # in the place of one that could be faster

    def say(self, text: str) -> None:
        self._on_progress(f"{self.replica.told}: {text}")

    @property
    def target(self) -> Target:
        assert self._target is not None
        return self._target

    # -- its entry in the ledger -----------------------------------------------------------------

    @property
    def owned(self) -> Owned:
        owned = self.ledger.get(self.replica.name)
        if owned is None or owned.pid is None:
            raise Unavailable(f"{self.ledger.path}: the engine is gone; run the same command again")
        return owned

    def admin(self) -> Admin:
        owned = self.owned
        return Admin(url(owned), api_key(owned))

    def note(self, **info: Any) -> None:
        """Add to the ledger's notes on the server."""
        owned = self.owned
        self.ledger.record(replace(owned, info={**owned.info, **info}))

    # -- making it serve the target --------------------------------------------------------------

    def begin(self) -> None:
        """Serve the target in the cheapest way, or launch a server that will; `finish` waits."""
        if not self._brought():
            self.stop()
            self._launch()

    def _brought(self) -> bool:
        """Whether the running server serves the target now; False where that takes a new one."""
        owned = self.ledger.get(self.replica.name)
        if owned is None or not is_running(owned):
            return False
        if owned.info["fingerprint"] != self._fingerprint():
            return False
        if owned.info.get("replica") != self.replica.note.get("replica"):
            return False  # it has another part of the machine
        loaded: dict[str, str] = owned.info["loaded"]
        if any(loaded.get(n, a.sha) != a.sha for n, a in self.target.adapters.items()):
            return False  # the name was used for other weights, whose prefixes may be cached
        if self._could_be_faster(owned):
            self.say("starting vLLM anew, because the cores are free now, as they were not before")
            return False
        try:
            self._await_ready(owned)
            return self._decide().bring(self)
        except Unavailable as e:
            self.say(f"the running server is of no use ({e})")
            return False

    def _could_be_faster(self, owned: Owned) -> bool:
        """Whether it was started while the cores were in use, and they were free for each of the
        last adapters. A start costs what some steps gain, so there is one such start at most."""
        found: list[str] = owned.info.get(_FOUND_FREE, [])
        if not owned.info.get(_SLEEPS) or self.target.name in found:
            return False
        found = [*found, self.target.name] if preload.cores_are_free() else []
        self.note(**{_FOUND_FREE: found})
        self._started_anew = len(found) >= preload.FREE_LOOKS
        return self._started_anew

    def _fingerprint(self) -> str:
        return self.target.fingerprint()

    # -- what a lifecycle calls ------------------------------------------------------------------

    def serves_target(self) -> bool:
        """Whether every adapter of the target is loaded."""
        return not self._missing()

    def can_hold_target(self) -> bool:
        """Whether it was started for adapters of the target's rank and layers."""
        shape = LoraShape.of_note(self.owned.info["lora"])
        return shape is not None and all(map(shape.covers, self.target.adapters.values()))

    def load_target(self) -> None:
        """Load what is missing of the target, then unload the rest."""
        loaded: dict[str, str] = dict(self.owned.info["loaded"])
        missing = self._missing()
        proven = [n for n in self.owned.info.get("proven", []) if n not in missing]
        self.note(proven=proven)  # what is loaded again may be loaded wrong
        with self.admin() as admin:
            for name in missing:
                self.say(f"loading adapter {name}")
                info = self.target.adapters[name]
                # Noted first, so that a name that may be loaded is never used for other weights.
                loaded[name] = info.sha
                self.note(loaded=loaded)
                admin.load(name, info.path)
            served = admin.models() or {}
            if not set(self.target.adapters) <= set(served):
                raise Unavailable(
                    f"{url(self.owned)} does not list {', '.join(missing)} after loading; its "
                    f"log: {self.owned.log}"
                )
            for name in set(served) - set(self.target.adapters) - {BASE_NAME}:
                admin.unload(name)
        self._note_held()

    def _missing(self) -> list[str]:
        """Names of the target's adapters that are not loaded."""
        with self.admin() as admin:
            served = admin.models() or {}
        return [name for name in self.target.adapters if name not in served]

    # -- its start -----------------------------------------------------------------------------

    def _launch(self) -> None:
        self.say("starting vLLM")
        began = time.monotonic()
        self._require_memory()
        target, host = self.target, self._host
        port = free_port(self._port_asked, host)
        scratch = new_scratch()
        key = self._key or secrets.token_urlsafe(24)
        env = vllm_server.environment(self.settings, key, scratch, self.replica)
        self._enter(
            vllm_server.command(
                target.model_dir, self.settings, target.shape, target.paths, port, host
            ),
            env,
            scratch,
            {
                "port": port,
                **({} if host in (HOST, *EVERYWHERE) else {"host": host}),
                "trainer_bytes": forecast.trainer_bytes(self.settings),
                # Of several servers the second one sees the first one load.
                _SLEEPS: self.settings.replicas == 1
                and not self._started_anew
                and preload.sleeps_for_now(os.environ, env),
            },
        )
        self._began = began

    @property
    def _port_asked(self) -> int:
        """Its TCP port; 0 takes a free one."""
        return self.settings.port and self.settings.port + self.replica.index

    def _enter(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        scratch: Path,
        info: Mapping[str, Any],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start its process and enter it into the ledger, with `info` and what it was started
        for."""
        target, name = self.target, self.replica.name
        self.ledger.launch(
            name,
            command,
            env=env,
            # Not the caller's folder: `python -m` would import from it.
            cwd=scratch,
            log=self.run_dir / "log" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.log",
            info={
                **info,
                "scratch": str(scratch),
                "fingerprint": self._fingerprint(),
                "lora": target.shape and target.shape.note,
                "loaded": {name: a.sha for name, a in target.adapters.items()},
                **self.replica.note,
            },
            pass_fds=pass_fds,
        )

    def finish(self) -> None:
        """Wait until the server is ready, if `begin` launched one."""
        began, self._began = self._began, None
        if began is None:
            return
        owned = self.owned
        try:
            self._await_ready(owned)
            if missing := self._missing():
                raise Unavailable(f"the server does not list {', '.join(missing)}")
            self._decide()
            self._note_held()
        except FieldkitError as e:
            tail = vllm_server.last_error(Path(owned.log))
            self.stop()
            raise Unavailable(f"vLLM did not start: {e}. {tail}Its log: {owned.log}") from e
        self.say(f"ready after {time.monotonic() - began:.0f} s")

    def _require_memory(self) -> None:
        memory.wait_until_available(
            self._need + self._to_come,
            forecast.gpu_needed(self.settings, self.replica),
            seconds=self.settings.memory_seconds,
            what=f"starting the {self.replica.told}",
        )

    @property
    def _need(self) -> int:
        """Host bytes that it will hold."""
        return forecast.memory_needed(self.target.model_dir, self.settings)

    @property
    def _to_come(self) -> int:
        """Host bytes that servers which are loading beside it have not taken yet."""
        loading = [s for s in self.beside if s is not self and s._began is not None]
        held = [sum(map(memory.held_by, family(s.owned.marker))) for s in loading]
        return sum(max(0, self._need - h) for h in held)

    def _await_ready(self, owned: Owned) -> None:
        """Wait until the server answers. Its death ends the wait."""
        patience = Patience(self.settings.start_seconds, _LONGEST_LOOK_SECONDS)
        said = 0.0
        with Admin(url(owned), api_key(owned), _READY_ANSWER_SECONDS) as admin:
            while not self._answers(admin, owned):
                if patience.over():
                    raise Unavailable(f"no answer within {patience.seconds:.0f} s")
                if patience.spent - said >= _PROGRESS_SECONDS:
                    said = patience.spent
                    self.say(f"loading, {patience.spent:.0f} s")
                if wait_ended(owned, _READY_POLL_SECONDS):
                    raise Unavailable("the process ended")

    def _answers(self, admin: Admin, owned: Owned) -> bool:
        """Whether it is ready. Notes its shared memory meanwhile."""
        models = admin.models()
        noted: dict[str, int] = self.owned.info.get("shared", {})
        shared = {**noted, **shared_files(family(owned.marker))}
        if shared != noted:
            self.note(shared=shared)
        return models is not None

    def _note_held(self) -> None:
        """Note the memory that the server holds: it cannot be measured after a kill."""
        self.note(held=held_note(family(self.owned.marker)))

    def _decide(self) -> Lifecycle:
        """Choose the lifecycle once for this server, and again only where the setting changed."""
        asked, info = self.settings.lifecycle, self.owned.info
        if info.get("asked") == asked:
            return LIFECYCLES.named(info["lifecycle"])
        with self.admin() as admin:
            decision = decide(asked, admin, available=memory.available(), trainer=self._room_wanted)
        self.note(asked=asked, lifecycle=decision.lifecycle.name, reason=decision.reason)
        return decision.lifecycle

    @property
    def _room_wanted(self) -> int:
        """Bytes that have to be free beside it, for the trainer and servers that are loading; those
        load into the host's memory, which does not count where a GPU has its own. What a trainer
        that runs already holds need not be free."""
        trainer = forecast.trainer_bytes(self.settings)
        if memory.gpu_total() is not None:
            return trainer
        beside = [e for e in self.ledger.entries() if e.info.get(BESIDE) and is_running(e)]
        held = sum(memory.held_by(e.pid or 0) for e in beside)
        return max(0, trainer - held) + self._to_come

    # -- what it serves ------------------------------------------------------------------------

    def prove(self) -> Served:
        """Prove the target's adapter, unless it was proven before; once more with a fresh server
        where that fails."""
        try:
            proof = self._proof()
        except Unavailable as e:
            self.say(f"trying once with a fresh server, because {e}")
            self.begin()
            self.finish()
            proof = self._proof()
        owned = self.owned
        return Served(
            base_url=url(owned),
            api_key=api_key(owned),
            model_name=self.target.name,
            version=self.target.name,
            adapter=self.target.adapter,
            pid=owned.pid,
            start_time=owned.start_time,
            lifecycle=owned.info["lifecycle"],
            reason=owned.info["reason"],
            proof=proof,
            name=self.replica.told,
            connections=self.settings.connections,
        )

    def _proof(self) -> Proof | None:
        """None for the base and for an adapter proven before. A server that fails is stopped."""
        target, owned = self.target, self.owned
        info = target.adapter
        proven: list[str] = owned.info.get("proven", [])
        if info is None or target.name in proven:
            return None
        alive = functools.partial(is_running, owned)
        client = EngineClient(url(owned), api_key(owned), target.name, alive=alive)
        try:
            proof = prove(client, info.path, info.sha)
        except FieldkitError:
            self.stop()
            raise
        self.note(proven=[*proven, target.name])
        self.say(f"{target.name} {proof.verdict.told}: {proof.detail}")
        return proof

    # -- its end -------------------------------------------------------------------------------

    def stop(self, *, at_end: bool = False) -> int:
        """End the server and its children, remove its leftovers, and wait for the memory.

        What stays beside it ends first; what works while it plays, only where no server follows
        (at_end). Returns the number of the server's processes.
        """
        end_beside(self.ledger, self.replica.name, self.settings.stop_seconds, at_end=at_end)
        owned = self.ledger.get(self.replica.name)
        if owned is None:
            return 0
        pids = family(owned.marker)
        if pids:
            self.say("stopping")
        leftovers = Leftovers.of(pids, owned.info)
        margin = int(self.settings.memory_margin_gib * memory.GIB)
        reclaim = to_come_back(owned, pids, margin)
        terminate(owned, self.settings.stop_seconds)
        leftovers.remove()
        forget_ended(self.ledger, owned)
        reclaim.wait(
            margin=margin,
            seconds=self.settings.memory_seconds,
            what="waiting for the engine's memory to come back",
        )
        return len(pids)


def url(owned: Owned) -> str:
    """Its address: on loopback, unless the ledger notes another host."""
    return address(owned.info.get("host", HOST), owned.info["port"])


def api_key(owned: Owned) -> str:
    """Read from the server's own environment: the key is on no disk."""
    return environment(owned.pid or 0).get(API_KEY_VARIABLE, "")
