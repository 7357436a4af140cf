"""A time limit for waiting that counts only time in which this process ran.

A suspended machine, or a run stopped with SIGSTOP, passes a deadline that nobody had a chance to
meet. So time is counted look by look, and a look that took longer than any look can take counts as
the longest one.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Patience:
    """`seconds` of waiting, with a look at what is waited for at least every `longest_look`."""

    def __init__(
        self,
        seconds: float,
        longest_look: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self.spent = 0.0
        """As of the latest call of `over`."""
        self._longest_look = longest_look
        self._clock = clock
        self._last = clock()

    def over(self) -> bool:
        """Whether the time is spent. Call it after every look."""
        now = self._clock()
        self.spent += min(now - self._last, self._longest_look)
        self._last = now
        return self.spent >= self.seconds
