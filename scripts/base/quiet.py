"""Notices a program that lives and says nothing any more, as one does that hangs in a driver.

How long it may be silent is its caller's to know. Time in which nobody looked (a suspended machine,
a frozen container) does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fieldkit.gate.patience import Patience

_LONGEST_LOOK_SECONDS = 5.0  # who listens looks several times a second; more was a standstill


class Quiet:
    """How long a program has been silent. seconds: how long it may be. clock: seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.was_too_long = False
        """As of the latest call of `too_long`; stays true."""
        self._clock = clock
        self.heard()

    def heard(self) -> None:
        """It has said something: the time begins anew."""
        self._patience = Patience(self.seconds, _LONGEST_LOOK_SECONDS, self._clock)

    def too_long(self) -> bool:
        """Whether it has been silent for too long. Call it at every look."""
        self.was_too_long = self.was_too_long or self._patience.over()
        return self.was_too_long
