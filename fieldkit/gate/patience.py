"""How long to wait for something, counted in time that this process was awake for.

A machine that is suspended, or everything of a run stopped with SIGSTOP, passes a deadline without
anybody having had a chance to meet it. So time is counted look by look, and a look that took longer
than any look can counts for no more than that.
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
        """Whether it has been waited long enough; to be asked after every look."""
        now = self._clock()
        self.spent += min(now - self._last, self._longest_look)
        self._last = now
        return self.spent >= self.seconds
