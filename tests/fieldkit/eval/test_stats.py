from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.optimize import brentq
from scipy.stats import norm
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from fieldkit.errors import BadInput
from fieldkit.eval import paired_means, paired_proportions, resampling, stats
from fieldkit.eval.stats import Interval, PairedTest


def pairs(both: int, first_only: int, second_only: int, neither: int) -> tuple[list[bool], ...]:
    first = [True] * (both + first_only) + [False] * (second_only + neither)
    second = [True] * both + [False] * first_only + [True] * second_only + [False] * neither
    return first, second


# --- McNemar ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [(10, 0, 3, 145), (1, 7, 1, 12), (0, 5, 5, 2), (30, 12, 2, 9)])
def test_mcnemar_agrees_with_statsmodels(cells: tuple[int, int, int, int]) -> None:
    both, first_only, second_only, neither = cells
    expected = statsmodels_mcnemar([[both, first_only], [second_only, neither]], exact=True)
    found = stats.mcnemar(*pairs(*cells))
    assert (found.both, found.first_only, found.second_only, found.neither) == cells
    assert found.p_value == pytest.approx(expected.pvalue)


def test_mcnemar_by_hand_three_against_none_is_a_quarter() -> None:
    assert stats.mcnemar(*pairs(1, 0, 3, 1)).p_value == pytest.approx(2 * 0.5**3)


def test_without_a_discordant_pair_there_is_no_evidence() -> None:
    assert stats.mcnemar(*pairs(4, 0, 0, 6)).p_value == 1.0


# --- proportions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("successes", "n"), [(0, 158), (13, 158), (154, 158), (158, 158), (1, 2)])
def test_wilson_agrees_with_statsmodels(successes: int, n: int) -> None:
    low, high = proportion_confint(successes, n, method="wilson")
    found = stats.wilson(successes, n)
    assert found.value == successes / n
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    [
        # Bentur et al. 2009, as worked in Fagerland, Lydersen and Laake (2014), Stat Med 33:2850
        ((1, 1, 7, 12), 0.026, 0.507),
        # Altman et al. (2000), Statistics with Confidence, table 6.2
        ((14, 0, 5, 22), 0.011, 0.226),
    ],
)
def test_newcombes_interval_agrees_with_worked_examples(
    cells: tuple[int, int, int, int], low: float, high: float
) -> None:
    found = stats.paired_difference(PairedTest(*cells, p_value=math.nan))
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=6e-4)


def tango(test: PairedTest) -> tuple[float, float]:
    """Tango's score interval (1998, Stat Med 17:891), found by root search: an independent view."""
    b, c, n = test.second_only, test.first_only, test.n

    def z(delta: float) -> float:
        a2 = -b - c + (2 * n - b + c) * delta
        a3 = -c * delta * (1 - delta)
        q = (math.sqrt(max(0.0, a2 * a2 - 8 * n * a3)) - a2) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        return (b - c - n * delta) / math.sqrt(variance)

    middle, limit = (b - c) / n, float(norm.ppf(0.975))
    low = brentq(lambda d: z(d) - limit, -1 + 1e-9, middle - 1e-9)
    high = brentq(lambda d: z(d) + limit, middle + 1e-9, 1 - 1e-9)
    return low, high


@pytest.mark.parametrize("cells", [(60, 8, 20, 70), (10, 3, 6, 139), (100, 20, 20, 18)])
def test_newcombes_interval_lies_close_to_tangos(cells: tuple[int, int, int, int]) -> None:
    test = PairedTest(*cells, p_value=math.nan)
    found = stats.paired_difference(test)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(tango(test), abs=0.012)


def test_the_paired_difference_of_the_stop_rate_leaves_no_doubt() -> None:
    found = stats.paired_proportions([False] * 158, [True] * 154 + [False] * 4)
    assert found.difference.interval is not None
    assert found.difference.interval.low > 0.92
    assert found.difference.sign == 1


def test_agreement_everywhere_still_leaves_an_interval() -> None:
    found = stats.paired_difference(PairedTest(20, 0, 0, 20, 1.0))
    assert found.value == 0
    assert found.interval is not None
    assert found.interval.low < -0.02 < 0.02 < found.interval.high
    assert found.sign == 0


def test_swapping_the_arms_mirrors_the_interval() -> None:
    one = stats.paired_difference(PairedTest(20, 3, 9, 8, 0.0))
    other = stats.paired_difference(PairedTest(20, 9, 3, 8, 0.0))
    assert one.interval is not None
    assert other.interval is not None
    assert one.interval.low == pytest.approx(-other.interval.high)
    assert one.value == -other.value


# --- widths, refusals and Holm's adjustment --------------------------------------------------


def test_an_interval_without_a_width_is_none() -> None:
    assert stats.with_width(resampling.mean([1 / 3] * 7)).interval is None
    assert stats.with_width(resampling.mean([4.0])).interval is None
    varied = resampling.mean([0.0, 1.0])
    assert stats.with_width(varied) == varied


def test_no_task_is_an_error() -> None:
    with pytest.raises(ValueError, match="no task"):
        stats.mcnemar([], [])
    with pytest.raises(ValueError, match="no task"):
        resampling.mean([])


@pytest.mark.parametrize("made_of", [paired_means, paired_proportions])
def test_what_cannot_be_paired_is_an_error_of_the_library(made_of: Any) -> None:
    for first, second in (([], []), ([True], [True, False])):
        with pytest.raises(BadInput):
            made_of(first, second)


def test_outcomes_may_be_rewards_of_0_and_1_and_nothing_else() -> None:
    found = paired_proportions([0.0, 0.0, 1.0], np.array([1, 0, 1]))  # type: ignore[list-item, arg-type]
    assert found == paired_proportions([False, False, True], [True, False, True])
    with pytest.raises(BadInput, match="an outcome is 2, neither true nor false"):
        paired_proportions([2, 0], [2, 0])  # type: ignore[list-item]


def test_a_difference_is_signed_where_test_and_interval_agree() -> None:
    few = paired_proportions([False] * 50, [True] * 5 + [False] * 45)
    assert few.difference.sign == 1, "Newcombe's interval alone excludes zero"
    assert few.sign == 0
    assert paired_proportions([False] * 50, [True] * 6 + [False] * 44).sign == 1


def test_holm_agrees_with_statsmodels() -> None:
    @given(some.lists(some.floats(0, 1), min_size=1, max_size=12))
    def agrees(p_values: list[float]) -> None:
        expected = multipletests(p_values, method="holm")[1]
        assert stats.holm(p_values) == pytest.approx(list(expected), abs=1e-12)

    # statsmodels collects garbage at each call, which takes a second where torch is loaded.
    gc.freeze()
    try:
        agrees()
    finally:
        gc.unfreeze()


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.02, 0.5: ×3, ×2, ×1, never below the one before
    assert stats.holm([0.02, 0.01, 0.5]) == pytest.approx([0.04, 0.03, 0.5])
    assert stats.holm([]) == []


@pytest.mark.parametrize(("successes", "n"), [(5, 3), (-1, 3), (0, 0)])
def test_what_is_no_proportion_is_refused(successes: int, n: int) -> None:
    with pytest.raises(BadInput, match=f"{successes} of {n} is no proportion"):
        stats.wilson(successes, n)


@pytest.mark.parametrize("p", [1.5, -0.5, math.nan, math.inf])
def test_holm_refuses_what_is_no_probability(p: float) -> None:
    with pytest.raises(BadInput, match=r"p-value 1 is .*between 0 and 1"):
        stats.holm([0.1, p])


def test_an_interval_that_touches_zero_does_not_exclude_it() -> None:
    assert not Interval(0.0, 0.4).excludes()
    assert Interval(0.01, 0.4).excludes()


# --- coverage: does a 95% interval hold the truth 95 times of 100? ----------------------------


def test_newcombes_interval_covers_95_percent_plus_or_minus_2() -> None:
    # 40 pairs whose outcomes are correlated, with a true rise of 14 points
    rng = np.random.default_rng(0)
    cells = (0.30, 0.08, 0.22, 0.40)
    truth = cells[2] - cells[1]
    covered = 0
    runs = 3000
    for both, first_only, second_only, neither in rng.multinomial(40, cells, size=runs):
        test = PairedTest(int(both), int(first_only), int(second_only), int(neither), math.nan)
        interval = stats.paired_difference(test).interval
        assert interval is not None
        covered += not interval.excludes(truth)
    assert 0.93 <= covered / runs <= 0.97
