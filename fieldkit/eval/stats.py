"""Is the difference real? Tests and intervals for two policies played on the same tasks.

Everything is paired by task and taken from SciPy where it has it; what it lacks names its source
(see `ratio` for the bootstrap over tasks). Each function takes plain sequences in one order of
tasks and is deterministic. SciPy is imported on first use. Nothing here knows what an arm, an
adapter or a task is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LEVEL = 0.95
"""Coverage that every interval aims at."""

RESAMPLES = 9999
"""Bootstrap resamples: SciPy's default; the ends move by well under a tenth of the width."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float = LEVEL

    def excludes(self, value: float = 0.0) -> bool:
        """Whether `value` lies outside."""
        return value < self.low or value > self.high


@dataclass(frozen=True)
class Estimate:
    """A number and its interval; None where there are too few observations to give one."""

    value: float
    interval: Interval | None

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval excludes zero on that side, else 0: not distinguishable."""
        if self.interval is None or not self.interval.excludes(0.0):
            return 0
        return 1 if self.value > 0 else -1


@dataclass(frozen=True)
class PairedTest:
    """The four counts of paired yes/no outcomes, and McNemar's exact two-sided p-value."""

    both: int
    first_only: int
    second_only: int
    neither: int
    p_value: float

    @property
    def n(self) -> int:
        """Pairs."""
        return self.both + self.first_only + self.second_only + self.neither


@dataclass(frozen=True)
class PairedProportions:
    """Two proportions on the same tasks: the test, and second − first with its interval."""

    test: PairedTest
    difference: Estimate


@lru_cache(maxsize=4096)
def wilson(successes: int, n: int) -> Estimate:
    """A proportion with Wilson's score interval (Wilson 1927), from SciPy. Needs n ≥ 1."""
    from scipy.stats import binomtest

    found = binomtest(successes, n).proportion_ci(confidence_level=LEVEL, method="wilson")
    return Estimate(successes / n, Interval(float(found.low), float(found.high)))


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> PairedTest:
    """McNemar's exact test on n ≥ 1 pairs: a two-sided binomial test of the discordant ones.

    The p-value is 1 where no pair is discordant.
    """
    from scipy.stats import binomtest

    _check_pairs(first, second)
    both = sum(a and b for a, b in zip(first, second, strict=True))
    first_only = sum(a and not b for a, b in zip(first, second, strict=True))
    second_only = sum(b and not a for a, b in zip(first, second, strict=True))
    neither = len(first) - both - first_only - second_only
    discordant = first_only + second_only
    p_value = float(binomtest(first_only, discordant).pvalue) if discordant else 1.0
    return PairedTest(both, first_only, second_only, neither, p_value)


def paired_difference(test: PairedTest) -> Estimate:
    """second − first of two paired proportions, with Newcombe's interval.

    Method 10 of Newcombe (1998), Statistics in Medicine 17:2635–2650: Wilson's intervals of the two
    proportions, combined with the correlation φ of the pairs (continuity-corrected, 0 where a
    margin is empty). Unlike Wald's it keeps its width where no pair is discordant.
    """
    n = test.n
    first = wilson(test.both + test.first_only, n)
    second = wilson(test.both + test.second_only, n)
    phi = _newcombe_phi(test)
    (down_1, up_1), (down_2, up_2) = _arms(first), _arms(second)
    value = second.value - first.value
    low = value - _combined(down_2, up_1, phi)
    high = value + _combined(up_2, down_1, phi)
    return Estimate(value, Interval(max(-1.0, low), min(1.0, high)))


def _arms(estimate: Estimate) -> tuple[float, float]:
    """How far the interval reaches down and up from the value."""
    assert estimate.interval is not None
    return estimate.value - estimate.interval.low, estimate.interval.high - estimate.value


def _combined(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))


def _newcombe_phi(test: PairedTest) -> float:
    margins = (
        (test.both + test.first_only)
        * (test.second_only + test.neither)
        * (test.both + test.second_only)
        * (test.first_only + test.neither)
    )
    if margins == 0:
        return 0.0
    agreement: float = test.both * test.neither - test.first_only * test.second_only
    if agreement > 0:
        agreement = max(agreement - test.n / 2, 0.0)
    return agreement / math.sqrt(margins)


def paired_proportions(first: Sequence[bool], second: Sequence[bool]) -> PairedProportions:
    """`mcnemar` and `paired_difference` of the same pairs."""
    test = mcnemar(first, second)
    return PairedProportions(test, paired_difference(test))


def mean(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The mean over tasks, with a bootstrap interval that resamples tasks (see `ratio`)."""
    return ratio(values, [1.0] * len(values), seed=seed)


def mean_difference(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> Estimate:
    """Mean of second − first over the same tasks, with a bootstrap interval (tasks resampled)."""
    return ratio_difference(first, second, [1.0] * len(first), seed=seed)


def ratio_difference(
    first: Sequence[float],
    second: Sequence[float],
    totals: Sequence[float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """(Σ second − Σ first) / Σ totals over the same tasks, with a task-clustered interval."""
    _check_pairs(first, second)
    _check_pairs(first, totals)
    return _ratio((tuple(second), tuple(first)), tuple(totals), seed, resamples)


def ratio(
    parts: Sequence[float],
    totals: Sequence[float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Σ parts / Σ totals (assertions that hold, of all) with a task-clustered bootstrap interval.

    Assertions of one task stand and fall together, so tasks are resampled and never assertions.
    Every total must be above 0. The plain percentile interval is too narrow for few tasks.
    Hesterberg (2015), The American Statistician 69:371–386: take wider percentiles, so that for a
    mean the width agrees with Student's t. BCa was not taken: on data that hardly vary (every
    episode takes twelve turns) it has no answer. The seed is fixed so that the same outcomes print
    the same page, and a page needs hundreds of intervals on the same tasks, so the resamples are
    drawn once for each number of tasks: that is why this is NumPy and not `scipy.stats.bootstrap`,
    which agrees with it. Answers are remembered: several tables of a page show the same interval.
    """
    _check_pairs(parts, totals)
    return _ratio((tuple(parts),), tuple(totals), seed, resamples)


Values = tuple[float, ...]


@lru_cache(maxsize=1024)
def _ratio(parts: tuple[Values, ...], totals: Values, seed: int, resamples: int) -> Estimate:
    """parts: one of each task, and perhaps what is to be taken from it."""
    import numpy as np

    if not all(math.isfinite(v) for values in (*parts, totals) for v in values):
        raise ValueError("a value is not a finite number")
    if min(totals) <= 0:
        raise ValueError("every task needs a total above 0; leave out the tasks that have none")
    n = len(totals)
    value = (math.fsum(parts[0]) - sum(map(math.fsum, parts[1:]))) / math.fsum(totals)
    if n == 1:
        return Estimate(value, None)
    # Every resample has n tasks, so equal totals (all means have them) need no product.
    equal = len(set(totals)) == 1
    totals_r = n * totals[0] if equal else _resampled_sums(totals, seed, resamples)
    parts_r = _resampled_sums(parts[0], seed, resamples)
    for values in parts[1:]:
        parts_r = parts_r - _resampled_sums(values, seed, resamples)
    tail = _expanded_tail(n)
    low, high = np.quantile(parts_r / totals_r, [tail, 1 - tail])
    return Estimate(value, Interval(float(low), float(high)))


def sign_flips(differences: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """The two-sided p-value of a mean difference over tasks: the sign-flip permutation test.

    differences: one for each task, of any size, such as means over several runs. Under the null
    each is as likely to have the other sign; exact where there are few tasks (`scipy.stats
    .permutation_test` with permutation_type "samples"), else from `resamples` random flips.

    >>> round(sign_flips([1.0] * 6), 4)
    0.0312
    """
    from scipy.stats import permutation_test

    _check_pairs(differences, differences)
    differing = [d for d in differences if d]  # a zero stays one
    if len(differing) < 2:
        return 1.0  # every flip is as far from 0
    found = permutation_test(
        (differing,),
        lambda flipped, axis: flipped.sum(axis=axis),
        vectorized=True,
        permutation_type="samples",
        n_resamples=resamples,
        rng=seed,
    )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment over the rows of one table (Holm 1979).

    Of m values the i-th smallest is multiplied by m − i + 1, cut at 1, and raised to that of the
    one before. SciPy lacks it, and for these lines statsmodels would bring pandas.
    """
    adjusted, floor = [0.0] * len(p_values), 0.0
    ranked = sorted(range(len(p_values)), key=lambda row: p_values[row])
    for i, row in enumerate(ranked):
        floor = max(floor, min(1.0, p_values[row] * (len(p_values) - i)))
        adjusted[row] = floor
    return adjusted


@lru_cache(maxsize=4)
def _resampled(n: int, resamples: int, seed: int) -> Any:
    """How often each of n tasks is drawn in each resample: an array of resamples × n counts."""
    import numpy as np

    drawn_rn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    drawn_rn += n * np.arange(resamples)[:, None]
    return (
        np.bincount(drawn_rn.ravel(), minlength=resamples * n).reshape(resamples, n).astype(float)
    )


@lru_cache(maxsize=256)
def _resampled_sums(values: Values, seed: int, resamples: int) -> Any:
    """The sum of the drawn tasks' values in each resample. An arm is compared with many others, and
    sums of differences are differences of sums."""
    import numpy as np

    return _resampled(len(values), resamples, seed) @ np.asarray(values, dtype=float)


def _expanded_tail(n: int) -> float:
    """The share to cut off at each end so that a mean's interval is as wide as Student's t."""
    from scipy.stats import norm
    from scipy.stats import t as student

    reach = math.sqrt(n / (n - 1)) * student.ppf((1 + LEVEL) / 2, n - 1)
    return float(norm.sf(reach))


def _check_pairs(first: Sequence[object], second: Sequence[object]) -> None:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} outcomes cannot be paired")
    if not first:
        raise ValueError("no task: there is nothing to compare")
