"""One command on a node: what Ray places there, and its output on its way back.

Runs in a worker process of Ray, whose code is the node's own checkout. It knows no run and no
setting; `rollout.cluster.run_there` is its other side.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.engine.port import free_port

READ_SECONDS = 0.5
"""How long `read` waits for output."""

OUT, ERR = 1, 2

_STATUS = 3  # besides OUT and ERR
_KILLED = -9
_CHUNK = 65536


@dataclass(frozen=True)
class Place:
    """Where a command is: the node's name, and its address in the cluster."""

    node: str
    host: str


@dataclass(frozen=True)
class Heard:
    """What a command has written since the last look, as (`OUT` or `ERR`, bytes).

    code: its exit code once it has ended and all is read; negative where a signal ended it.
    """

    chunks: tuple[tuple[int, bytes], ...]
    code: int | None


class NodeProcess:
    """At most one command in its life. Ray calls its methods one after another, in the main
    thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._status = b""

    def place(self) -> Place:
        """Where this is; the answer shows that Ray has placed it."""
        import ray

        return Place(os.uname().nodename, ray.util.get_node_ip_address())

    def port(self, asked: int, host: str) -> int:
        """A free TCP port at this address of the node; `asked`, unless that is 0. Raises
        `Unavailable`."""
        return free_port(asked, host)

    def start(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
        """Start the command in the node's environment with `env` on top; what keeps it from
        starting, in words, or nothing."""
        missing = [p for p in (cwd, command[0]) if not Path(p).exists()]
        if missing:
            return f"{missing[0]}: no such path there"
        reading, status = os.pipe()
        own = dict(os.environ)
        own.pop("OMP_NUM_THREADS", None)  # Ray's: as many as CPUs were asked for
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollout.cluster.keeper", str(status), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**own, **env},
            cwd=cwd,
            pass_fds=(status,),
            start_new_session=True,
        )
        os.close(status)
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        self._keeper = keeper
        for file, what in ((keeper.stdout, OUT), (keeper.stderr, ERR), (reading, _STATUS)):
            self._selector.register(file, selectors.EVENT_READ, what)
        return ""

    def read(self) -> Heard:
        """What it has written; waits up to `READ_SECONDS` for something."""
        chunks = []
        for key, _ in self._selector.select(READ_SECONDS):
            if not (data := os.read(key.fd, _CHUNK)):
                self._selector.unregister(key.fileobj)
            elif key.data == _STATUS:
                self._status += data
            else:
                chunks.append((int(key.data), data))
        over = not self._selector.get_map()
        return Heard(tuple(chunks), int(self._status or _KILLED) if over else None)

    def end(self) -> None:
        """Ask it to end. `read` goes on until it has."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
