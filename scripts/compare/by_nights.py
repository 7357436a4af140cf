"""Nights as observations: what other seeds may give, where tests over tasks speak of these nights.

With two or three nights the interval is wide and the test says little. That is the truth about so
few nights, and the reason for showing it beside the tests over tasks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from fieldkit.eval.stats import LEVEL, Estimate, Interval


def student(values: Sequence[float]) -> Estimate:
    """The mean of one value a night, with Student's interval; none for a single night, and none for
    nights that are all alike, whose interval would have no width."""
    from scipy.stats import t

    mean, n = statistics.fmean(values), len(values)
    if len({*values}) < 2:
        return Estimate(mean, None)
    reach = float(t.ppf((1 + LEVEL) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, Interval(mean - reach, mean + reach))


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The two-sided p of Welch's test (1947) of two arms, from one value a night; None where an arm
    has a single night, or where no night differs from another of its arm."""
    if min(len(one), len(other)) < 2 or len({*one}) == len({*other}) == 1:
        return None
    from scipy.stats import ttest_ind

    return float(ttest_ind(one, other, equal_var=False).pvalue)
