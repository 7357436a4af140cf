"""One child process, watched from the event loop without a thread.

Output and end are both events: output is read as it comes into a `BoundedOutput`, and a pidfd shows
the end. A command is over when its process ends, even if another process still holds its output
pipe, because a daemon that keeps the pipe open must not delay the answer. Nothing here depends on a
sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from fieldkit.errors import Unavailable
from rollout.sandbox.output import BoundedOutput

GONE_SECONDS = 60.0
"""For killed processes to be gone; it takes milliseconds on an idle machine."""

_REAP_SECONDS = 1.0  # for a process that has been waited for as long as that, or was just killed
_CHUNK = 65536  # the default capacity of a Linux pipe
_UMASK = 0o022
_PIPE_MODE = 0o622  # as for terminals: others may write


class Ending(Enum):
    """The event that ended `Child.over`."""

    EXITED = auto()
    """The process ended by itself."""
    TIMED_OUT = auto()
    """It was still running at its time limit."""
    FLOODED = auto()
    """It printed more than the limit."""


class Child:
    """A started process: stdout and stderr in one pipe, a session of its own, and no environment
    but the one it is given. stdin is /dev/null or the descriptor `stdin`.

    Raises `OSError` if it cannot be started. `close` must be called in any case.
    """

    def __init__(
        self,
        argv: Sequence[str | bytes],
        output: BoundedOutput,
        *,
        env: Mapping[str, str],
        cwd: str = "/",
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._over: asyncio.Future[Ending] = self._loop.create_future()
        self._drained: asyncio.Future[None] = self._loop.create_future()
        self._started = time.monotonic()
        self._out, write_end = os.pipe()
        os.set_blocking(self._out, False)
        # `> /dev/stderr` opens the pipe again, and under root a command's user does not own it.
        os.fchmod(write_end, _PIPE_MODE)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=write_end,
                stderr=write_end,
                env=dict(env),
                cwd=cwd,
                umask=_UMASK,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        except BaseException:
            os.close(self._out)
            raise
        finally:
            os.close(write_end)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            os.close(self._out)
            raise
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._loop.add_reader(self._out, self._on_output)

    @property
    def seconds(self) -> float:
        """Wall seconds since the start."""
        return time.monotonic() - self._started

    @property
    def running(self) -> bool:
        """Whether the process has neither ended nor been reaped."""
        return self._process.poll() is None

    async def over(self, seconds: float) -> Ending:
        """Wait until the process ends, prints too much, or `seconds` after its start have
        passed."""
        left = max(0.0, seconds - self.seconds)
        done, _ = await asyncio.wait([self._over], timeout=left)
        return self._over.result() if done else Ending.TIMED_OUT

    def kill(self) -> None:
        """SIGKILL the process group.

        It cannot hit another process: the group's number stays in use until its leader is reaped,
        and only this object reaps it.
        """
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    async def reap(self) -> int:
        """Wait for the (killed or ended) process; its exit code, 128 + N after signal N. Raises
        `Unavailable` for one that is still there after `GONE_SECONDS`."""
        if self._process.returncode is None:
            try:
                await asyncio.wait_for(readable(self._pidfd), GONE_SECONDS)
            except TimeoutError:
                raise Unavailable(f"a command outlived SIGKILL by {GONE_SECONDS:g} s") from None
        code = self._process.wait()
        return 128 - code if code < 0 else code

    async def drain(self, seconds: float) -> bool:
        """Read what is left in the pipe; false if it is still held open after `seconds`."""
        done, _ = await asyncio.wait([self._drained], timeout=seconds)
        return bool(done)

    def close(self) -> None:
        """Close the descriptors; kill and reap a process that still runs."""
        self._loop.remove_reader(self._out)
        self._loop.remove_reader(self._pidfd)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in a driver stays
            self._process.wait(_REAP_SECONDS)
        os.close(self._out)
        os.close(self._pidfd)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._settle(Ending.EXITED)

    def _on_output(self) -> None:
        chunk = os.read(self._out, _CHUNK)
        if not chunk:
            self._loop.remove_reader(self._out)
            self._drained.set_result(None)
        elif not self._output.feed(chunk):
            self._settle(Ending.FLOODED)

    def _settle(self, ending: Ending) -> None:
        if not self._over.done():
            self._over.set_result(ending)


async def readable(fd: int) -> None:
    """Wait until `fd` can be read from; for a pidfd: until the process has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        loop.remove_reader(fd)
        ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
