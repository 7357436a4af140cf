from __future__ import annotations

import gc
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.optimize import brentq
from scipy.stats import bootstrap, norm, ttest_1samp
from scipy.stats import t as student_t
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from fieldkit.errors import BadInput
from fieldkit.eval import paired_means, paired_proportions, stats
from fieldkit.eval.stats import Estimate, Interval, PairedTest


def pairs(both: int, first_only: int, second_only: int, neither: int) -> tuple[list[bool], ...]:
    first = [True] * (both + first_only) + [False] * (second_only + neither)
    second = [True] * both + [False] * first_only + [True] * second_only + [False] * neither
    return first, second


# --- sign flips ------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [(10, 0, 3, 145), (1, 7, 1, 12), (0, 5, 5, 2)])
def test_sign_flips_of_wins_and_losses_are_mcnemars_test(
    cells: tuple[int, int, int, int],
) -> None:
    first, second = pairs(*cells)
    differences = [float(b) - float(a) for a, b in zip(first, second, strict=True)]
    expected = stats.mcnemar(first, second).p_value
    assert stats.sign_flips(differences) == pytest.approx(expected)


def test_sign_flips_of_many_tasks_come_near_the_t_test_and_repeat_themselves() -> None:
    noise = np.random.default_rng(3).normal(0.1, 1.0, 150)
    found = stats.sign_flips([*noise])
    assert found == pytest.approx(ttest_1samp(noise, 0.0).pvalue, abs=0.02)
    assert stats.sign_flips([*noise]) == found
    assert stats.sign_flips([*noise], seed=1) != found


def test_sign_flips_without_a_difference_or_with_one_prove_nothing() -> None:
    assert stats.sign_flips([0.0] * 5) == 1.0
    assert stats.sign_flips([0.0, -0.25, 0.0]) == stats.sign_flips([0.5]) == 1.0
    with pytest.raises(ValueError, match="no task"):
        stats.sign_flips([])


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


# --- bootstrap -------------------------------------------------------------------------------


def test_the_ratio_is_of_sums_and_not_a_mean_of_rates() -> None:
    assert stats.ratio([1, 9], [1, 19]).value == 10 / 20


def test_the_ratio_difference_is_worked_by_hand() -> None:
    assert stats.ratio_difference([1, 2, 0], [2, 2, 1], [2, 4, 4]).value == pytest.approx(0.2)


def test_the_same_outcomes_give_the_same_interval_again() -> None:
    values = list(np.random.default_rng(7).normal(size=20))
    assert stats.mean(values) == stats.mean(values)
    assert stats.mean(values, seed=1) != stats.mean(values)


def test_for_a_mean_the_interval_is_about_as_wide_as_students() -> None:
    values = np.random.default_rng(3).normal(size=12)
    student = ttest_1samp(values, 0).confidence_interval()
    found = stats.mean(list(values)).interval
    assert found is not None
    assert found.high - found.low == pytest.approx(student.high - student.low, rel=0.05)


def test_the_interval_agrees_with_scipys_bootstrap_at_the_expanded_level() -> None:
    rng = np.random.default_rng(5)
    totals = rng.integers(3, 8, 158)
    parts = rng.binomial(totals, 0.45)
    reach = math.sqrt(158 / 157) * student_t.ppf(0.975, 157)
    expected = bootstrap(
        (parts, totals),
        lambda p, t, axis: p.sum(axis=axis) / t.sum(axis=axis),
        paired=True,
        method="percentile",
        confidence_level=2 * norm.cdf(reach) - 1,
        rng=np.random.default_rng(9),
    ).confidence_interval
    found = stats.ratio(parts.tolist(), totals.tolist()).interval
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=3e-3)


def test_tasks_are_resampled_so_assertions_of_a_task_count_as_one_observation() -> None:
    # ten tasks of twenty assertions that stand and fall together: the interval must be that of
    # ten observations, far wider than that of two hundred
    parts, totals = [20, 0] * 5, [20] * 10
    clustered = stats.ratio(parts, totals).interval
    naive = stats.wilson(100, 200).interval
    assert clustered is not None
    assert naive is not None
    assert clustered.high - clustered.low > 3 * (naive.high - naive.low)


@pytest.mark.parametrize("n_tasks", [40, 1000])
def test_the_resamples_are_those_of_one_draw_whatever_their_blocks(n_tasks: int) -> None:
    values = np.random.default_rng(2).integers(9, size=n_tasks)
    drawn = np.random.default_rng(7).integers(n_tasks, size=(stats.RESAMPLES, n_tasks))
    tail = norm.sf(
        math.sqrt(n_tasks / (n_tasks - 1)) * student_t.ppf((1 + stats.LEVEL) / 2, n_tasks - 1)
    )
    expected = np.quantile(values[drawn].sum(axis=1) / n_tasks, [tail, 1 - tail])
    found = stats.mean(values.tolist(), seed=7).interval
    assert found is not None
    assert [found.low, found.high] == expected.tolist()


def test_the_bootstrap_of_three_thousand_tasks_takes_no_hundred_megabytes() -> None:
    values = np.random.default_rng(4).random(3000).tolist()
    stats.mean(values[:2])  # what is imported on use
    tracemalloc.start()
    stats.mean(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_an_interval_without_a_width_is_none() -> None:
    assert stats.with_width(stats.mean([1 / 3] * 7)).interval is None
    assert stats.with_width(stats.mean([4.0])).interval is None
    varied = stats.mean([0.0, 1.0])
    assert stats.with_width(varied) == varied


def test_a_few_tasks_that_differ_all_in_one_direction_prove_nothing() -> None:
    """As the exact test over the tasks has it: five have p = 0.06, six 0.03."""
    for few, sign in ((4, 0), (5, 0), (6, 1)):
        after = [1.0] * few + [0.0] * (40 - few)
        assert stats.mean_difference([0.0] * 40, after).sign == sign
        assert (stats.sign_flips(after) < 0.05) == bool(sign)
    both = stats.mean_difference([1.0, 1.0], [0.0, 0.0])
    assert both.interval == Interval(-1.0, 0.0)


def test_one_task_gives_a_value_without_an_interval() -> None:
    found = stats.mean([4.0])
    assert found.value == 4.0
    assert found.interval is None
    assert found.sign == 0


def test_a_value_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        stats.mean([1.0, math.nan])


def test_no_task_is_an_error() -> None:
    with pytest.raises(ValueError, match="no task"):
        stats.mcnemar([], [])
    with pytest.raises(ValueError, match="no task"):
        stats.mean([])


def test_outcomes_of_different_lengths_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        stats.mean_difference([1.0, 2.0], [1.0])


def test_a_task_without_a_total_is_an_error() -> None:
    with pytest.raises(ValueError, match="leave out"):
        stats.ratio([0, 1], [0, 2])


def test_scores_of_two_policies_have_the_p_and_the_interval_of_their_differences() -> None:
    before, after = np.linspace(0, 1, 12), np.linspace(0.1, 1.4, 12)
    found = paired_means(before, after)  # type: ignore[arg-type]
    assert found.p_value == stats.sign_flips(list(after - before)) < 0.01
    assert found.difference == stats.mean_difference(list(before), list(after))
    alike = paired_means([0.0] * 8, [1.0] * 8)
    assert (alike.difference, alike.p_value) == (Estimate(1.0, None), 2 / 2**8)


def test_scores_that_differ_by_rounding_only_are_equal() -> None:
    """As the means of the same attempts in another order do."""
    one, same = (0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3
    assert one != same
    assert paired_means([one] * 8, [same] * 8).p_value == 1.0
    five = paired_means([0.3] * 20, [0.5] * 5 + [0.1 + 0.2] + [0.3] * 14)
    assert five == paired_means([0.3] * 20, [0.5] * 5 + [0.3] * 15)
    assert five.difference.sign == 0


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


def test_the_memory_of_sign_flips_does_not_grow_with_the_tasks() -> None:
    differences = [float(i % 7 - 3) for i in range(3000)]
    tracemalloc.start()
    try:
        stats.sign_flips(differences)
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


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


def test_a_value_that_is_not_finite_has_no_sign() -> None:
    for values in ([math.nan, 0.001], [0.001, math.inf]):
        with pytest.raises(ValueError, match="not a finite number"):
            stats.sign_flips(values)


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


@pytest.mark.parametrize("n_tasks", [20, 158])
def test_the_clustered_interval_covers_95_percent_plus_or_minus_2(n_tasks: int) -> None:
    # two arms whose per-task success is shared; 3 to 7 assertions a task; a true rise of 5 points
    rng = np.random.default_rng(1)
    runs, truth, covered = 1500, 0.05, 0
    for _ in range(runs):
        totals = rng.integers(3, 8, n_tasks)
        easy = rng.beta(2, 2, n_tasks) * 0.95
        first = rng.binomial(totals, easy)
        second = rng.binomial(totals, easy + truth)
        found = stats.ratio_difference(
            first.tolist(), second.tolist(), totals.tolist(), resamples=499
        )
        assert found.interval is not None
        covered += not found.interval.excludes(truth)
    assert 0.93 <= covered / runs <= 0.97
