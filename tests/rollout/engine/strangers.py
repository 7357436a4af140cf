"""A server that no run owns, as a person would start one: the scripted engine, in a process of the
test, and a proxy before a server that can cut it off."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollout.engine.admin import Admin
from rollout.engine.port import HOST, free_port
from tests.chaos.night import SITE

KEY = "the-person's-own"
_START_SECONDS = 200.0


@dataclass(frozen=True)
class Stranger:
    """A running server, its address and its process."""

    url: str
    process: subprocess.Popen[bytes]

    def names(self) -> set[str]:
        """The names that it serves."""
        with Admin(self.url, KEY) as admin:
            return {str(card["id"]) for card in admin.cards()}


@contextmanager
def stranger(
    model: Path, log: Path, *, processed: bool = True, slower: float = 1.0
) -> Iterator[Stranger]:
    """A server of this model under the name `theirs`, ended by whoever started it.

    processed: it reports logprobs after temperature, as vLLM does only where it is told to. slower:
    how many times as long an answer takes.
    """
    port = free_port(0)
    words = ["--model", str(model), "--served-model-name", "theirs", "--host", HOST]
    words += ["--port", str(port), "--max-model-len", "512"]
    words += ["--logprobs-mode", "processed_logprobs"] if processed else []
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
            env={
                **os.environ,
                "PYTHONPATH": str(SITE),
                "VLLM_API_KEY": KEY,
                "GRPO_TEST_SLOWER": str(slower),
            },
            stdout=out,
            stderr=out,
        )
    url = f"http://{HOST}:{port}"
    try:
        deadline = time.monotonic() + _START_SECONDS
        with Admin(url, KEY) as admin:
            while admin.models() is None:
                assert process.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < deadline, "it does not answer"
                time.sleep(0.1)
        yield Stranger(url, process)
    finally:
        process.terminate()
        process.wait()


class Proxy:
    """Passes connections to a server on this machine, until it is cut.

    While it is cut a new connection is refused, and the old ones are reset.
    """

    def __init__(self, to: int) -> None:
        self._to = to
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._listen()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                here, _ = listener.accept()
                there = socket.create_connection((HOST, self._to))
                with self._lock:
                    self._open |= {here, there}
                for a, b in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with self._lock:
                self._open.discard(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """Refuse new connections and end the old ones."""
        # A blocked accept keeps a closed socket listening; shutdown wakes it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Accept connections again, on the same port."""
        self._listener = socket.create_server((HOST, self.port))
        self._listen()

    def close(self) -> None:
        self.cut()
