"""The probability that the policy solves a task, estimated from earlier attempts.

Each task's solve rate has a Beta distribution. The prior comes from the pool: its mean is the share
of all attempts that passed, and it has the weight of `PRIOR_ATTEMPTS` attempts. Attempts of older
policies count less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reward.pool import PoolHistory

PRIOR_ATTEMPTS = 2.0
"""At a mean of 0.45 a group of four is then mixed with probability 0.59."""

DISCOUNT = 0.97
"""An attempt's weight falls by this factor with every step: by half in 23 steps, a default
night."""


@dataclass(frozen=True)
class SolveRate:
    """Beta(passes, fails), the distribution of a task's solve rate. Both are above 0."""

    passes: float
    fails: float

    @property
    def mean(self) -> float:
        """The expected solve rate."""
        return self.passes / (self.passes + self.fails)

    def mixed(self, k: int) -> float:
        """The probability that of k attempts some pass and some do not: 1 − E[p^k] − E[(1 − p)^k],
        each a product of k ratios.

        >>> round(SolveRate(1, 1).mixed(4), 6)
        0.6
        """
        all_pass = all_fail = 1.0
        for i in range(k):
            n = self.passes + self.fails + i
            all_pass *= (self.passes + i) / n
            all_fail *= (self.fails + i) / n
        return 1.0 - all_pass - all_fail


def solve_rates(history: PoolHistory, pool: Sequence[str], step: int) -> dict[str, SolveRate]:
    """The solve rate of every task of the pool (task ids) before `step` is played."""
    passed, failed = dict.fromkeys(pool, 0.0), dict.fromkeys(pool, 0.0)
    for d in history.drawn:
        if d.task_id in passed:
            weight = DISCOUNT ** (step - 1 - d.step)
            passed[d.task_id] += weight * d.passed
            failed[d.task_id] += weight * (d.played - d.passed)
    n_passed, n_failed = sum(passed.values()), sum(failed.values())
    mean = (n_passed + 1) / (n_passed + n_failed + 2)
    return {
        task: SolveRate(
            PRIOR_ATTEMPTS * mean + passed[task], PRIOR_ATTEMPTS * (1 - mean) + failed[task]
        )
        for task in pool
    }
