"""Whether a descriptor can be read or written now. `select.select` knows none above 1,023, and a
program with many children has more."""

from __future__ import annotations

import select

READ, WRITE = select.POLLIN, select.POLLOUT


def is_ready(fd: int, event: int, seconds: float = 0.0) -> bool:
    """Wait for `event` (READ or WRITE) for at most so many seconds; whether it came. An end or an
    error of the other side is ready too: the next call tells it."""
    poller = select.poll()
    poller.register(fd, event)
    return bool(poller.poll(max(0.0, seconds) * 1000))
