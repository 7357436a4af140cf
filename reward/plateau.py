"""Whether a night's reward has risen and has stopped rising, from the mean reward of its steps.

The rewards of single steps are noisy, because each step plays other tasks. So the last quarter of
the steps is compared with the quarter before it, and only after a rise that is beyond noise: a
night that has not begun to learn is no plateau. As the windows grow with the night, a slow rise
late in a long night has as much evidence as a quick one early in a short night.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_IN_WINDOW = 8
"""Steps in a window at least; so no night of fewer than 24 steps has a plateau. With five, one of
three committed nights of 104 steps and more would have ended at step 18, and rose until its end."""

SHARE = 0.25
"""A plateau's further gain, in as many steps again, is below this share of the gain so far."""

CONFIDENCE = 0.99
"""How sure it has to be that the gain is below, by Student's t. A night is looked at after every
step: of steady rises one in 30 is taken for a plateau within 100 steps
(`python -m tests.reward.plateau_alarm`)."""

RISEN_Z = 3.0
"""Standard errors by which the last window must lie above the first one."""


@dataclass(frozen=True)
class Rise:
    """How far the reward has risen.

    window: steps in each of the three windows. gain: mean of the last window minus that of the
    first. recent: mean of the last window minus that of the one before. error: the standard error
    of both differences.
    """

    window: int
    gain: float
    recent: float
    error: float

    @property
    def most(self) -> float:
        """The upper 99 % bound of what a further window is expected to bring, if the rise goes on
        at the present rate."""
        from scipy.stats import t

        differences = 2 * self.window - 1
        freedom = 2 * differences**2 / (3 * differences - 1)  # of von Neumann's estimate
        return self.recent + float(t.ppf(CONFIDENCE, freedom)) * self.error

    @property
    def over(self) -> bool:
        """Whether the reward has risen and hardly rises any more."""
        return self.gain > RISEN_Z * self.error and self.most < SHARE * self.gain


def rise(rewards: Sequence[float]) -> Rise | None:
    """The rise of the steps' mean rewards, oldest first; None for too few of them.

    The noise of a step is estimated from the differences of neighbouring steps (von Neumann 1941),
    which a trend hardly changes.
    """
    window = max(FEWEST_IN_WINDOW, len(rewards) // 4)
    if len(rewards) < 3 * window:
        return None
    first, before, last = (
        statistics.fmean(part)
        for part in (rewards[:window], rewards[-2 * window : -window], rewards[-window:])
    )
    recent = rewards[-2 * window :]
    squares = [(b - a) ** 2 for a, b in itertools.pairwise(recent)]
    noise = math.sqrt(statistics.fmean(squares) / 2)
    return Rise(window, last - first, last - before, noise * math.sqrt(2 / window))
