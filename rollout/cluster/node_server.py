"""A run's own server, on a node of the cluster.

Its process in the ledger is the one here that runs it there (`rollout.cluster.run_there`) and that
ends it by ending. So it is found again, stopped, and cleaned up after a kill as a server on this
machine is. It takes no memory here, and adapters reach it by their paths in the run folder, which
its node has to see.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from fieldkit.errors import Unavailable, last_told
from fieldkit.files.json_text import parse_json
from fieldkit.gate.patience import Patience
from fieldkit.process.descriptor import READ, is_ready
from fieldkit.process.owned import wait_ended
from rollout.cluster import engine_there
from rollout.cluster.cluster_settings import ClusterSettings, told_needs
from rollout.cluster.placed import prefix
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.leftovers import new_scratch
from rollout.engine.replica import Replica
from rollout.engine.server import Progress, Server
from rollout.engine.target import Target
from rollout.engine.vllm_server import API_KEY_VARIABLE

_POLL_SECONDS = 0.5
_BETWEEN_LINES_SECONDS = 15.0
_ENDED_SECONDS = 10.0  # for a program that has closed its descriptor to write its error

_ONLY = Replica()


class NodeServer(Server):
    """Use it as `Server`; `rollout.engine.serve.ensure_engine` takes it in its place."""

    def __init__(
        self,
        run_dir: Path,
        settings: EngineSettings,
        on_progress: Progress,
        target: Target | None = None,
        replica: Replica = _ONLY,
        beside: Sequence[Server] = (),
        *,
        cluster: ClusterSettings,
    ) -> None:
        super().__init__(run_dir, settings, on_progress, target, replica, beside)
        self._cluster = cluster
        self._place: int | None = None  # a descriptor that tells where it is, until that is known

    # -- what differs from a server on this machine ----------------------------------------------

    def _fingerprint(self) -> str:
        """That of the server and of where it was placed, so that neither kind takes the other's."""
        needs = told_needs(self._cluster.engine_needs)
        return f"{super()._fingerprint()} on {self._cluster.address} with {needs}"

    def _brought(self) -> bool:
        """False too where nobody heard where it was placed."""
        owned = self.ledger.get(self.replica.name)
        return owned is not None and bool(owned.info.get("host")) and super()._brought()

    @property
    def _room_wanted(self) -> int:
        return 0  # the trainer has a place of its own

    # -- its start -------------------------------------------------------------------------------

    def _launch(self) -> None:
        self.say("starting vLLM on a node of the cluster")
        began = time.monotonic()
        self._place, tell = os.pipe()
        words = prefix(self._cluster, "engine_needs", f"the {self.replica.told}")
        words[-1:] = ["--tell", str(tell), "--port", str(self._port_asked), "--"]
        self._enter(
            [*words, *engine_there.command(self.target, self.settings)],
            {**os.environ, API_KEY_VARIABLE: secrets.token_urlsafe(24)},
            new_scratch(),
            {"host": "", "port": 0, "trainer_bytes": 0},
            pass_fds=(tell,),
        )
        os.close(tell)
        self._began = began

    def finish(self) -> None:
        """Wait until it has a place on a node and is ready, if `begin` launched one."""
        if self._place is not None:
            reading, self._place = self._place, None
            try:
                self._hear_place(reading)
            finally:
                os.close(reading)
        super().finish()

    def _hear_place(self, reading: int) -> None:
        """Note its address once it is placed. Raises `Unavailable` with its error where it is
        not."""
        patience, said, text = Patience(self._cluster.room_seconds * 2, _POLL_SECONDS * 4), 0.0, b""
        while not patience.over():
            if patience.spent - said >= _BETWEEN_LINES_SECONDS:
                said = patience.spent
                self.say(f"waiting for room on a node, {patience.spent:.0f} s")
            if not is_ready(reading, READ, _POLL_SECONDS):
                continue
            if chunk := os.read(reading, 4096):
                text += chunk
            elif text:
                place = parse_json(text, "the server's place")
                self.note(host=place["host"], port=place["port"], node=place["node"])
                self.say(f"on node {place['node']}")
                return
            else:
                break
        owned = self.owned
        wait_ended(owned, _ENDED_SECONDS)
        error = last_told(Path(owned.log).read_text(encoding="utf-8", errors="replace"))
        self.stop()
        raise Unavailable(f"{error}; its log: {owned.log}")
