"""Means and ratios over tasks, and their differences, with intervals and p-values by resampling.

An interval is a bootstrap over tasks (see `ratio`). A p-value comes from flips of the signs of the
tasks' differences (see `sign_flips`). Each function takes plain sequences in one order of tasks and
is deterministic for a seed. NumPy and SciPy are imported on first use. Nothing here knows what an
arm, an adapter or a task is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.stats import (
    FEWEST_DIFFERING,
    LEVEL,
    Estimate,
    Interval,
    check_pairs,
    with_width,
)

RESAMPLES = 9999
"""Bootstrap resamples: SciPy's default; the ends move by well under a tenth of the width."""

_BLOCK = 2**17
"""Draws that are held at once: 1 MiB, which stays in a core's cache. With 16 times as many the
sums of 158 tasks take seven times as long."""

_FLIPS = 2**21
"""Signs that are held at once: SciPy's work on a batch costs more than its memory."""

_ROWS = 64
"""A block's resamples are a multiple of it: BLAS adds up several at once, and what is left over in
another order, so that the last bit of an interval would depend on the block."""


@dataclass(frozen=True)
class PairedMeans:
    """Two means over the same tasks: the sign-flip test's p-value, and second − first with its
    interval, which is None where all tasks differ alike."""

    p_value: float
    difference: Estimate


def paired_means(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> PairedMeans:
    """Scores of two policies, one of each for a task in the same order: the sign-flip permutation
    test (exact for few tasks), and the difference of the means with a paired bootstrap interval.

    Tasks are resampled, and the percentiles taken so that the interval is as wide as Student's
    (Hesterberg 2015). It reaches to zero where fewer than six tasks differ, which prove nothing.

    Several attempts at a task count as one score, their mean: they are not independent. Raises
    `BadInput` for no task, sequences of different lengths, and a score that is not finite.

    >>> found = paired_means([0.2, 0.4, 0.1, 0.5, 0.3, 0.6], [0.4, 0.5, 0.4, 0.9, 0.5, 0.7])
    >>> round(found.p_value, 4), round(found.difference.value, 4), found.difference.sign
    (0.0312, 0.2167, 1)
    """
    check_pairs(first, second)
    pairs = list(zip(first, second, strict=True))
    p_value = sign_flips([0.0 if _alike(a, b) else b - a for a, b in pairs], seed=seed)
    return PairedMeans(p_value, with_width(mean_difference(first, second, seed=seed)))


def _alike(a: float, b: float) -> bool:
    """Equal up to rounding: the mean of the same attempts in another order is the same score."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


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
    """(Σ second − Σ first) / Σ totals over the same tasks, with a task-clustered interval.

    The interval reaches to zero where fewer than six tasks differ: their resamples nearly all have
    the sign of the few, and `sign_flips` of so few proves nothing.
    """
    check_pairs(first, second)
    check_pairs(first, totals)
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
    check_pairs(parts, totals)
    return _ratio((tuple(parts),), tuple(totals), seed, resamples)


Values = tuple[float, ...]


@lru_cache(maxsize=1024)
def _ratio(parts: tuple[Values, ...], totals: Values, seed: int, resamples: int) -> Estimate:
    """parts: one of each task, and perhaps what is to be taken from it."""
    import numpy as np

    for values in (*parts, totals):
        _check_finite(values)
    if min(totals) <= 0:
        raise BadInput("every task needs a total above 0; leave out the tasks that have none")
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
    if parts[1:] and sum(not _alike(*pair) for pair in zip(*parts, strict=True)) < FEWEST_DIFFERING:
        low, high = min(low, 0.0), max(high, 0.0)
    return Estimate(value, Interval(float(low), float(high)))


def sign_flips(differences: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """The two-sided p-value of a mean difference over tasks: the sign-flip permutation test.

    differences: one for each task, of any size, such as means over several runs. Under the null
    each is as likely to have the other sign; exact where there are few tasks (`scipy.stats
    .permutation_test` with permutation_type "samples"), else from `resamples` random flips. Raises
    `BadInput` for a difference that is not a finite number.

    >>> round(sign_flips([1.0] * 6), 4)
    0.0312
    """
    from scipy.stats import permutation_test

    check_pairs(differences, differences)
    _check_finite(differences)
    differing = [d for d in differences if d]  # a zero stays one
    if len(differing) < 2:
        return 1.0  # every flip is as far from 0
    found = permutation_test(
        (differing,),
        lambda flipped, axis: flipped.sum(axis=axis),
        vectorized=True,
        permutation_type="samples",
        n_resamples=resamples,
        batch=max(1, _FLIPS // (2 * len(differing))),
        rng=seed,
    )
    return float(found.pvalue)


@lru_cache(maxsize=4)
def _resampled(n: int, resamples: int, seed: int) -> Any:
    """How often each of n tasks is drawn in each resample: an array of resamples × n counts.

    A byte holds them: a task among more than 255 is drawn more often in no resample ever.
    """
    import numpy as np

    counts_rn, rng = np.empty((resamples, n), dtype=np.uint8), np.random.default_rng(seed)
    for rows in _blocks(n, resamples):
        drawn_bn = rng.integers(n, size=(len(rows), n))
        drawn_bn += n * np.arange(len(rows))[:, None]
        found = np.bincount(drawn_bn.ravel(), minlength=drawn_bn.size)
        counts_rn[rows.start : rows.stop] = found.reshape(drawn_bn.shape)
    return counts_rn


@lru_cache(maxsize=64)
def _resampled_sums(values: Values, seed: int, resamples: int) -> Any:
    """The sum of the drawn tasks' values in each resample. An arm is compared with many others, and
    sums of differences are differences of sums."""
    import numpy as np

    values_n, counts_rn = np.asarray(values, dtype=float), _resampled(len(values), resamples, seed)
    blocks = _blocks(len(values), resamples)
    return np.concatenate([counts_rn[b.start : b.stop].astype(float) @ values_n for b in blocks])


def _blocks(n: int, resamples: int) -> list[range]:
    """The resamples of n tasks in turn, as many at once as may be in memory."""
    most = _ROWS * max(1, _BLOCK // (_ROWS * n))
    return [range(r, min(r + most, resamples)) for r in range(0, resamples, most)]


@lru_cache(maxsize=1024)
def _expanded_tail(n: int) -> float:
    """The share to cut off at each end so that a mean's interval is as wide as Student's t."""
    from scipy.stats import norm
    from scipy.stats import t as student

    reach = math.sqrt(n / (n - 1)) * student.ppf((1 + LEVEL) / 2, n - 1)
    return float(norm.sf(reach))


def _check_finite(values: Sequence[float]) -> None:
    if not all(map(math.isfinite, values)):
        raise BadInput("a value is not a finite number")
