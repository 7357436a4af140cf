"""A terminal or a pipe that is never waited for.

A terminal takes nothing more after Ctrl-S, or while nobody reads what a broken ssh connection was
to carry; a pipe, while its reader stands still. Who writes to it then stands still too, and with
the loop every phase that the loop listens to. Here what is not taken at once is kept, up to a
limit, and written later.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
from typing import IO, Any, TextIO, cast

from fieldkit.process.descriptor import WRITE, is_ready

_MOST_BYTES = 256 * 1024
"""Of what is kept; what comes after that is dropped. The run's log has it."""

_PIECE_BYTES = 64 * 1024
_LAST_SECONDS = 3.0
"""How long the last words may take."""


class _Kept(io.RawIOBase):
    """A descriptor that does not block, and what it has not taken yet."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._left = bytearray()
        self._is_writing = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: Any, /) -> int:
        """Take all of it, or nothing of it where too much is left."""
        n = memoryview(data).nbytes
        if len(self._left) + n <= _MOST_BYTES:
            self._left += data
        self._write_on()
        return n

    def _write_on(self) -> None:
        if self._is_writing:
            return  # a signal's line came while one was written; that one's writer goes on with it
        self._is_writing = True
        try:
            with contextlib.suppress(BlockingIOError):
                while self._left:
                    del self._left[: os.write(self._fd, self._left[:_PIECE_BYTES])]
        finally:
            self._is_writing = False

    def close(self) -> None:
        """Write what is left, if that takes a moment only."""
        if self.closed:
            return
        deadline = time.monotonic() + _LAST_SECONDS
        try:
            self._write_on()
            while self._left and (wait := deadline - time.monotonic()) > 0:
                is_ready(self._fd, WRITE, wait)
                self._write_on()
        finally:
            os.close(self._fd)
            super().close()


class Unblocked(io.TextIOWrapper):
    """A stream to the terminal or pipe of `out`. Close it after the last word."""

    def __init__(self, out: IO[str]) -> None:
        fd = out.fileno()
        out.flush()
        # Opened again, because a flag on its own descriptor would be the shell's too.
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        kept, like = cast(IO[bytes], _Kept(own)), cast(TextIO, out)
        super().__init__(kept, like.encoding, like.errors, write_through=True)


def unblocked(out: IO[str]) -> IO[str]:
    """`Unblocked` where `out` is a terminal or a pipe; else, and where that cannot be opened again,
    `out` itself."""
    try:
        fd = out.fileno()
        waits = os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)
        return Unblocked(out) if waits else out
    except (OSError, ValueError):
        return out
