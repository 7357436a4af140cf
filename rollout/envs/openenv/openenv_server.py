"""An OpenEnv server on this machine that the playing process starts, and that ends with it.

It runs in the environment's own virtual environment (`openenv_host`), on a free port of the
loopback, in a session of its own with the marks of the run's ledger. Its standard input is a pipe
that only this process holds, so that it ends however this process ends. A server that did not
notice this is still in the ledger, and is ended before the next start.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.json_text import parse_json
from fieldkit.process.descriptor import READ, is_ready
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import Owned, family, start_time, terminate
from rollout.engine.port import holder
from rollout.envs.openenv import openenv_host
from rollout.envs.openenv.openenv_host import HOST

_STOP_SECONDS = 6.0  # for a server to shut down after SIGTERM
_LEFT_SECONDS = 1.0  # the same for one that has outlived its owner already
_GONE_SECONDS = 1.0  # from the end of a connection to the end of the process
_LOG_TAIL_BYTES = 4000
_LOG_SHOWN = 600  # characters

_CHECKOUT = Path(__file__).resolve().parents[3]
_OUR_VENV = _CHECKOUT / ".venv-openenv"
_OUR_SETUP = _CHECKOUT / "scripts" / "setup" / "openenv.sh"
"""Makes `_OUR_VENV`, with pinned packages."""


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    name: the environment's. app: "module:app" or "path/to/file.py:app", looked for in `folder`.
    python: of the virtual environment that has the app's packages. port: 0 takes a free one.
    start_seconds: the limit from the start until it answers.
    """

    name: str
    app: str
    python: Path
    folder: Path
    port: int = 0
    start_seconds: float = 120.0

    def check(self) -> None:
        """Raise `BadInput` where the app or the Python is not there, with the command that makes
        the virtual environment."""
        where = f"envs.{self.name}"
        file, _, name = self.app.rpartition(":")
        if not file or not name:
            raise BadInput(
                f'{where}: serve = "{self.app}": write "module:app" or "path/to/file.py:app"'
            )
        if file.endswith(".py") and not (self.folder / file).is_file():
            raise BadInput(f"{where}: serve: {self.folder / file}: no such file")
        if self.python.is_file():
            return
        venv = self.python.parent.parent
        if venv.absolute() == _OUR_VENV:
            here = _OUR_SETUP.is_relative_to(Path.cwd())
            setup = _OUR_SETUP.relative_to(Path.cwd()) if here else _OUR_SETUP
            how = f"`{shlex.quote(str(setup))}` makes its virtual environment"
        else:
            shown = shlex.quote(str(venv))
            how = (
                f"`python3 -m venv {shown} && {shown}/bin/pip install openenv` makes a virtual"
                " environment there; install what the app imports, too"
            )
        raise BadInput(f"{where}: python = {self.python}: no such program; {how}")

    def command(self, ready: int) -> list[str]:
        """`-I`: neither the folder of the script nor PYTHON* variables are on its path."""
        host = Path(openenv_host.__file__).resolve()
        words = (self.app, self.folder.resolve(), self.port, ready)
        return [str(self.python.absolute()), "-I", str(host), *map(str, words)]


class LocalServer:
    """One server, started when it is first asked for and again when it has died.

    ledger: the file that records it. logs: a folder, one file a start. say: called with a line
    about each start and end, in the thread that asks for the address. Safe for several event loops
    and threads.
    """

    def __init__(
        self, launch: Launch, ledger: Path, logs: Path, say: Callable[[str], None]
    ) -> None:
        self.launch = launch
        self._ledger = Ledger(ledger)
        self._logs = logs
        self._say = say
        self._lines: deque[str] = deque()
        self._starting = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owned: Owned | None = None
        self._port = 0

    @property
    def pid(self) -> int | None:
        """Of the running server."""
        return self._child.pid if self._running() and self._child else None

    async def address(self) -> str:
        """Its address. Starts it if it is not running.

        Raises `BadInput` if it cannot be started with these settings, and `Unavailable`.
        """
        if not self._running():
            try:
                await asyncio.to_thread(self._ensure)
            except asyncio.CancelledError:
                self._give_up()
                raise
            finally:
                while self._lines:
                    self._say(self._lines.popleft())
        return f"http://{HOST}:{self._port}"

    async def restart(self, seen: str) -> None:
        """End the server that answered at `seen`, unless another one has taken its place."""
        if await self.address() == seen:
            await asyncio.to_thread(self.stop)

    async def ending(self) -> str:
        """How it ended, with the end of its log; empty while it runs. For one whose connection
        broke: that comes a moment before the end of its process, which this waits for."""
        return await asyncio.to_thread(self._ended, _GONE_SECONDS)

    def stop(self) -> None:
        """End it with everything that it started."""
        with self._starting:
            self._stop()

    def _running(self) -> bool:
        return self._port != 0 and self._child is not None and self._child.poll() is None

    def _ended(self, seconds: float = 0.0) -> str:
        """How it ended within so many seconds; empty if it did not."""
        if self._child is None:
            return ""
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return ""
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return f"its server ended ({how}){self._last_error()}"

    def _give_up(self) -> None:
        """Cancel a start that is no longer wanted: its thread notices, and Ctrl-C waits for it."""
        if self._port == 0 and self._child is not None:
            self._child.kill()

    def _ensure(self) -> None:
        with self._starting:
            if self._running():
                return
            if self._child is not None:
                self._lines.append(f"envs.{self.launch.name}: {self._ended()}")
                self._stop()
            self._end_what_was_left()
            self._start()

    # -- start -------------------------------------------------------------------------------------

    def _start(self) -> None:
        launch, began = self.launch, time.monotonic()
        launch.check()
        ready, ready_write = os.pipe()
        log = self._logs / f"{self._entry}-{time.strftime('%Y%m%d-%H%M%S')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = launch.command(ready_write)
        owned = self._ledger.announce(self._entry, command, log, _owner())
        try:
            with open(log, "ab") as out:
                self._child = subprocess.Popen(
                    command,
                    env={**os.environ, **self._ledger.marks(owned)},
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(ready_write,),
                )
        except OSError as e:
            os.close(ready)
            self._ledger.forget(self._entry)
            raise BadInput(f"envs.{launch.name}: python = {launch.python}: {e.strerror}") from e
        finally:
            os.close(ready_write)
        self._owned = self._ledger.started(owned, self._child.pid)
        atexit.register(self.stop)
        try:
            self._port = self._await_ready(ready)
        except BaseException:
            self._stop()
            raise
        finally:
            os.close(ready)
        seconds = time.monotonic() - began
        self._lines.append(
            f"envs.{launch.name}: its server is ready after {seconds:.1f} s (log {log})"
        )

    def _await_ready(self, ready: int) -> int:
        """The port, once it answers. The end of the process closes the pipe and ends the wait."""
        launch = self.launch
        told, deadline = b"", time.monotonic() + launch.start_seconds
        while not told.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not is_ready(ready, READ, left):
                raise Unavailable(
                    f"envs.{launch.name}: its server does not answer after"
                    f" {launch.start_seconds:g} s{self._last_error()}"
                )
            chunk = os.read(ready, 4096)
            if not chunk:
                raise Unavailable(
                    f"envs.{launch.name}: its server ended as it started{self._last_error()}"
                )
            told += chunk
        return self._read(parse_json(told, "openenv_host"))

    def _read(self, said: Mapping[str, Any]) -> int:
        where, launch = f"envs.{self.launch.name}", self.launch
        if said.get("error") == "port":
            raise Unavailable(
                f"{where}: port {launch.port} on {HOST} is busy ({holder(launch.port)}); end that"
                " program if it is yours, or leave out url to take any free port"
            )
        if said.get("error") == "name":
            raise BadInput(f"{where}: serve = {launch.app}: {said['text']}")
        if said.get("error") == "import":
            why = self._last_error()
            if missing := said["missing"]:
                python, package = shlex.quote(str(launch.python)), missing.partition(".")[0]
                why = (
                    "; install the package that brings it, for example `scripts/setup/uv.sh pip"
                    f" install --python {python} {package}`"
                )
            raise BadInput(f"{where}: serve = {launch.app}: {said['text']}{why}")
        return int(said["port"])

    # -- end ---------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._port = 0
        atexit.unregister(self.stop)
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            assert self._owned is not None
            terminate(self._owned, _STOP_SECONDS)
            self._child.wait()
            # The run folder may have been removed, and the entry with it.
            with contextlib.suppress(OSError):
                self._ledger.forget(self._entry)
        self._child = self._owned = None

    def _end_what_was_left(self) -> None:
        """End a server that an earlier owner left. Raises `Unavailable` if that owner is alive."""
        left = self._ledger.get(self._entry)
        if left is None or not family(left.marker):
            return
        owner = left.info.get("owner")
        alive = owner != os.getpid() and owner and start_time(owner) == left.info.get("owner_since")
        if alive:
            raise Unavailable(
                f"envs.{self.launch.name}: the running process {owner} uses its server"
                f" ({self._ledger.path}); wait for it to end"
            )
        self._lines.append(f"envs.{self.launch.name}: ending the server that a killed process left")
        terminate(left, _LEFT_SECONDS)

    @property
    def _entry(self) -> str:
        return f"env-{self.launch.name}"

    def _last_error(self) -> str:
        """The end of the newest log, for a message."""
        log = Path(self._owned.log) if self._owned is not None else None
        if log is None or not log.is_file():
            return ""
        lines = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").split("\n")
        shown = " ".join(line.strip() for line in lines if line.strip()).split("Traceback")[-1]
        return f"; its log {log} ends with: {shown[-_LOG_SHOWN:]}" if shown else f"; its log: {log}"


def _owner() -> dict[str, Any]:
    return {"owner": os.getpid(), "owner_since": start_time(os.getpid())}
