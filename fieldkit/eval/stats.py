"""Is the difference real? Tests and intervals for paired yes/no outcomes of two policies.

Everything is paired by task and taken from SciPy where it has it; what it lacks names its source.
Each function takes plain sequences in one order of tasks and is deterministic. SciPy is imported on
first use. Nothing here knows what an arm, an adapter or a task is. `resampling` compares scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fieldkit.errors import BadInput

LEVEL = 0.95
"""Coverage that every interval aims at."""

FEWEST_DIFFERING = 6
"""Of five tasks that differ, all in one direction, the exact test over tasks has p = 0.06."""


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

    @property
    def sign(self) -> int:
        """That of the difference where test and interval both exclude zero, else 0. Newcombe's
        interval alone can exclude it where fewer than six tasks differ, which prove nothing."""
        return self.difference.sign if self.test.p_value < 1 - LEVEL else 0

    def with_p(self, p_value: float) -> PairedProportions:
        """The same change with another p-value, such as one that is corrected for others."""
        return replace(self, test=replace(self.test, p_value=p_value))


@lru_cache(maxsize=4096)
def wilson(successes: int, n: int) -> Estimate:
    """A proportion with Wilson's score interval (Wilson 1927), from SciPy.

    Raises `BadInput` unless 0 ≤ successes ≤ n and n ≥ 1.

    >>> found = wilson(7, 10)
    >>> found.value, round(found.interval.low, 3), round(found.interval.high, 3)
    (0.7, 0.397, 0.892)
    """
    from scipy.stats import binomtest

    if not (0 <= successes <= n and n >= 1):
        raise BadInput(f"{successes} of {n} is no proportion")

    # The interval does not depend on the third number; at the share itself the test, which nobody
    # asks for, takes no time.
    tested = binomtest(successes, n, successes / n)
    found = tested.proportion_ci(confidence_level=LEVEL, method="wilson")
    return Estimate(successes / n, Interval(float(found.low), float(found.high)))


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> PairedTest:
    """McNemar's exact test on n ≥ 1 pairs: a two-sided binomial test of the discordant ones.

    The p-value is 1 where no pair is discordant. Raises `BadInput` for an outcome that is neither
    true nor false, 1 nor 0.
    """
    from scipy.stats import binomtest

    check_pairs(first, second)
    if odd := {*first, *second} - {0, 1}:
        raise BadInput(f"an outcome is {next(iter(odd))!r}, neither true nor false")
    pairs = Counter((bool(a), bool(b)) for a, b in zip(first, second, strict=True))
    both, neither = pairs[True, True], pairs[False, False]
    first_only, second_only = pairs[True, False], pairs[False, True]
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
    """Outcomes of two policies, one of each for a task in the same order: McNemar's exact test, and
    the difference with Newcombe's interval.

    Raises `BadInput` for no task, and for sequences of different lengths.

    >>> found = paired_proportions([False] * 6, [True] * 6)
    >>> round(found.test.p_value, 4), found.difference.value
    (0.0312, 1.0)
    """
    test = mcnemar(first, second)
    return PairedProportions(test, paired_difference(test))


def with_width(found: Estimate) -> Estimate:
    """An estimate by bootstrap without an interval of no width: where all tasks have one value, so
    has every resample, which says nothing about other tasks.

    Not part of `resampling.ratio`, for the pages of finished runs show such intervals.
    """
    ends = found.interval
    flat = ends is not None and math.isclose(ends.low, ends.high, rel_tol=1e-9, abs_tol=1e-12)
    return replace(found, interval=None) if flat else found


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of tests that are read together, as the rows of one table are
    (Holm 1979).

    p_values of m tests → m p-values that keep the chance of any false rejection below the level
    each is compared with. The i-th smallest is multiplied by m − i + 1, cut at 1, and raised to
    that of the one before. SciPy lacks it, and for these lines statsmodels would bring pandas.
    Raises `BadInput` for a value that is not between 0 and 1.

    >>> holm([0.04, 0.01])
    [0.04, 0.02]
    """
    for i, p in enumerate(p_values):
        if not 0 <= p <= 1:
            raise BadInput(f"p-value {i} is {p}: it has to be between 0 and 1")
    adjusted, floor = [0.0] * len(p_values), 0.0
    ranked = sorted(range(len(p_values)), key=lambda row: p_values[row])
    for i, row in enumerate(ranked):
        floor = max(floor, min(1.0, p_values[row] * (len(p_values) - i)))
        adjusted[row] = floor
    return adjusted


def check_pairs(first: Sequence[object], second: Sequence[object]) -> None:
    if len(first) != len(second):
        raise BadInput(f"{len(first)} and {len(second)} outcomes cannot be paired")
    if len(first) == 0:  # an array has no truth
        raise BadInput("no task: there is nothing to compare")
