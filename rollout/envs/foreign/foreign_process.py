"""A program in another virtual environment that answers requests over a socket, one JSON line each.

It runs worlds whose frameworks pin other versions of our packages. The program gets the socket and
nothing else of this process. It and what it started end when the socket closes, so no kill of this
process leaves anything behind. Its output goes to a file, whose last line is quoted when it dies.
Nothing here depends on a framework.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.json_text import parse_json
from rollout.envs.base import Late

MOST_LINE_BYTES = 64 * 2**20
"""The program is ended if an answer is longer than this."""

_GONE_SECONDS = 5.0
"""How long a killed program may take to be gone; it takes milliseconds."""

_SECRETS = ("VLLM_API_KEY",)
"""Environment variables that the program does not get."""


class ForeignProcess:
    """One running program. Requests may come from any event loop, many at once.

    Raises `Unavailable` where it cannot be started. `close` ends it.
    """

    def __init__(self, python: Path, program: Path, log: Path) -> None:
        self._log = log
        self._logged = log.stat().st_size if log.exists() else 0
        self._program = program.stem
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        # Two locks, because a program that reads nothing blocks whoever sends, and only ending it
        # helps then.
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._ids = itertools.count(1)
        self._over: str | None = None
        self._channel, theirs = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if k not in _SECRETS}
        try:
            with log.open("ab") as out:
                # -I: neither this folder nor PYTHONPATH is searched for what it imports.
                self._process = subprocess.Popen(
                    [str(python), "-I", str(program), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as e:
            self._channel.close()
            raise Unavailable(f"{python}: cannot be started ({e})") from e
        finally:
            theirs.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._over is None

    async def ask(self, do: str, seconds: float, **arguments: Any) -> Any:
        """The answer to one request.

        Raises `Unavailable` if the program fails or has died, `Late` if this request takes longer
        than `seconds` (the program is then ended, because one that hangs blocks every request), and
        `BadInput` if it refuses for good, or the request holds a number that is not finite.
        """
        asked = next(self._ids)
        try:
            line = json.dumps({"id": asked, "do": do, "with": arguments}, allow_nan=False)
        except ValueError as e:
            raise BadInput(f"{self._program}: {do!r} cannot be asked: {e}") from None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._over is not None:
                raise Unavailable(self._over)
            self._waiting[asked] = (loop, answer)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.to_thread(self._send, line.encode() + b"\n")
                return _checked(await answer)
        except TimeoutError:
            answer.cancel()
            limit = "" if do == "load" else " (call_seconds)"
            self._end(f"{self._program}: no answer to {do!r} in {seconds:g} s{limit}")
            raise Late(str(self._over)) from None
        finally:
            self._waiting.pop(asked, None)

    def close(self) -> None:
        """End the program. May be called again."""
        self._end(f"{self._program}: it was ended")
        self._process.wait(_GONE_SECONDS)
        self._reader.join(_GONE_SECONDS)
        self._channel.close()

    def _send(self, line: bytes) -> None:
        with self._sending:
            try:
                self._channel.sendall(line)
            except OSError:
                return  # the reader notices the end too, and says why

    def _read(self) -> None:
        with self._channel.makefile("rb") as lines:
            try:
                while line := lines.readline(MOST_LINE_BYTES):
                    if not line.endswith(b"\n"):
                        self._end(f"{self._program}: an answer exceeds {MOST_LINE_BYTES} bytes")
                        return
                    self._deliver(parse_json(line.decode(), self._program))
            except ConnectionResetError:
                pass  # it died before it had read all that was sent
            except (OSError, UnicodeDecodeError, BadInput) as e:
                self._end(f"{self._program}: its answer cannot be read ({e})")
                return
        self._end(f"{self._program}: it died{self._last_word()}")

    def _last_word(self) -> str:
        """Of this program; an earlier one may have written to the same file."""
        written = self._log.read_bytes()[self._logged :]
        said = written.decode(errors="replace").strip().splitlines()
        return f": {said[-1]} (all of it: {self._log})" if said else ""

    def _deliver(self, answer: Mapping[str, Any]) -> None:
        loop, future = self._waiting.get(answer["id"], (None, None))
        if loop is not None and future is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_settle, future, answer)

    def _end(self, why: str) -> None:
        with self._lock:
            if self._over is None:
                self._over = why
            why = self._over  # the first reason counts: the reader sees the end of a killed one too
            waiting = list(self._waiting.values())
        if self._process.returncode is None:  # once it is reaped, its pid may be another's
            # What it started may have a session of its own, as verifiers' programs have.
            started: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):
                started = psutil.Process(self._process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):  # it is a group of its own, maybe gone
                os.killpg(self._process.pid, signal.SIGKILL)
            for process in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        for loop, future in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_fail, future, why)


def _settle(future: asyncio.Future[Any], answer: Mapping[str, Any]) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[Any], why: str) -> None:
    if not future.done():
        future.set_exception(Unavailable(why))


def _checked(answer: Mapping[str, Any]) -> Any:
    error = answer.get("error")
    if error is None:
        return answer["ok"]
    said = f"{error['text']} ({error['where']})" if error["where"] else error["text"]
    raise BadInput(said) if error["kind"] == "refused" else Unavailable(said)
