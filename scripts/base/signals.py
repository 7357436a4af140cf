"""Turns signals into stop requests: finish the step, or stop now.

Ctrl-C once (or a closed terminal) lets the step finish; Ctrl-C twice or SIGTERM stops at once. A
closed terminal is told twice, by the shell and by the kernel, and asks no more than that. In both
cases the same command resumes the run. A signal that was ignored when the program started
(nohup, --detach) stays ignored. Nothing is interrupted here: the loop checks the wish.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Wish:
    """The stop request so far. `told` gets one line each time it changes."""

    def __init__(self, told: Callable[[str], None] = lambda text: None) -> None:
        self.finish = False
        self.now = False
        self.told = told
        self.on_now: Callable[[], None] = lambda: None
        """Called on "stop now", to wake what waits in an event loop."""

    def ask_finish(self) -> None:
        """Finish the step; asked twice: stop now."""
        if self.finish:
            self.ask_now()
            return
        self.finish = True
        self.told("finishing this step; Ctrl-C again stops now (both can be resumed)")

    def ask_now(self) -> None:
        """Stop now."""
        if not self.now:
            self.finish = self.now = True
            self.told("stopping now; the same command goes on from here")
            self.on_now()


@contextmanager
def listening(wish: Wish) -> Iterator[Wish]:
    """Turn SIGINT, SIGHUP and SIGTERM into wishes for as long as the block lasts."""

    def finish(number: int, frame: FrameType | None) -> None:
        wish.ask_finish()

    def hung_up(number: int, frame: FrameType | None) -> None:
        if not wish.finish:
            wish.ask_finish()

    def now(number: int, frame: FrameType | None) -> None:
        wish.ask_now()

    handlers = {signal.SIGINT: finish, signal.SIGHUP: hung_up, signal.SIGTERM: now}
    heard = {s: h for s, h in handlers.items() if signal.getsignal(s) is not signal.SIG_IGN}
    before = {s: signal.signal(s, h) for s, h in heard.items()}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
