"""How many tasks would it take? Power of McNemar's exact test on paired yes/no outcomes.

A table that says "no difference proven" leaves open whether there was none or whether there were
too few tasks to see one. Everything here is exact: binomial sums, no normal approximation. The
planning quantity is how often two arms disagree on a task, which a finished comparison tells.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from fieldkit.errors import BadInput

LEVEL = 0.05
"""Usual two-sided size of the test: what its p-value has to stay below. Where several tests are
corrected together (Holm), the size of one is smaller."""

POWER = 0.8
"""Usual share of experiments that should find an effect that is there (Cohen 1988)."""

MOST_TASKS = 20_000
"""Where the search for a number of tasks ends."""


def mcnemar_power(n: int, gained: float, lost: float, level: float = LEVEL) -> float:
    """Probability that n pairs give p < `level`, when a pair is gained or lost with these rates.

    gained, lost: probabilities that only the second, or only the first, arm succeeds on a task;
    both ≥ 0 and together at most 1, else `BadInput`. The number of discordant pairs is
    Binomial(n, gained + lost); given it, the test is a binomial one against 1/2.
    """
    _check_rates(gained, lost)
    if n < 1 or gained + lost == 0:
        return 0.0
    import numpy as np
    from scipy.stats import binom

    discordant = np.arange(n + 1)
    weight = binom.pmf(discordant, n, min(1.0, gained + lost))
    # At most this many of the rarer kind: a tail of half the level on either side.
    bound = _largest_rejected(n, level)
    share = gained / (gained + lost)
    below = binom.cdf(bound, discordant, share)
    above = binom.sf(discordant - bound - 1, discordant, share)
    return float(np.sum(weight * (below + above)))


def _check_rates(gained: float, lost: float) -> None:
    if not (gained >= 0 and lost >= 0 and gained + lost <= 1 + 1e-12):
        raise BadInput(f"rates {gained} and {lost} are no probabilities of disjoint events")


@lru_cache(maxsize=64)
def _largest_rejected(n: int, level: float) -> Any:
    """For 0..n discordant pairs: the largest count of the rarer kind with p < level, −1 if none."""
    import numpy as np
    from scipy.stats import binom

    discordant = np.arange(n + 1)
    guess = binom.ppf(level / 2, discordant, 0.5).astype(int)
    guess = np.minimum(guess, (discordant - 1) // 2)
    p_value = 2 * binom.cdf(guess, discordant, 0.5)
    return np.where(p_value < level, guess, guess - 1).clip(min=-1)


@lru_cache(maxsize=256)
def tasks_needed(gained: float, lost: float, level: float = LEVEL) -> int | None:
    """How many tasks McNemar's test needs to find a change with power 0.8.

    gained, lost: the shares of tasks that only the second, or only the first, policy passes; both
    ≥ 0 and together at most 1, else `BadInput`. level: what its p-value has to stay below. None
    where the two rates are equal (there is nothing to find) or `MOST_TASKS` are too few. The
    exact test's power saws a little with n: with the answer it is reached and with one pair less it
    is not, though with a few less it may be.

    >>> tasks_needed(0.10, 0.04)
    322
    """
    _check_rates(gained, lost)
    if math.isclose(gained, lost):
        return None
    low, high = 1, 8
    while mcnemar_power(high, gained, lost, level) < POWER:
        if high == MOST_TASKS:
            return None
        low, high = high, min(2 * high, MOST_TASKS)
    while high - low > 1:
        middle = (low + high) // 2
        reached = mcnemar_power(middle, gained, lost, level) >= POWER
        low, high = (low, middle) if reached else (middle, high)
    return high


@lru_cache(maxsize=256)
def detectable_change(n: int, discordant: float, level: float = LEVEL) -> float | None:
    """The smallest gained − lost that n tasks find with power 0.8; see `tasks_needed`.

    discordant: gained + lost, held fixed, in (0, 1]. None where even a change all in one direction
    would be missed.

    >>> round(detectable_change(158, 0.14), 3)
    0.086
    """
    from scipy.optimize import brentq

    def missing(change: float) -> float:
        gained, lost = (discordant + change) / 2, (discordant - change) / 2
        return mcnemar_power(n, gained, max(0.0, lost), level) - POWER

    if not 0 < discordant <= 1 or missing(discordant) < 0:
        return None
    return float(brentq(missing, 0.0, discordant, xtol=1e-6))
