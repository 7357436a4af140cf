from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import bootstrap, norm, ttest_1samp
from scipy.stats import t as student_t

from fieldkit.eval import paired_means, resampling, stats
from fieldkit.eval.stats import Estimate, Interval
from tests.fieldkit.eval.test_stats import pairs

# --- sign flips ------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [(10, 0, 3, 145), (1, 7, 1, 12), (0, 5, 5, 2)])
def test_sign_flips_of_wins_and_losses_are_mcnemars_test(
    cells: tuple[int, int, int, int],
) -> None:
    first, second = pairs(*cells)
    differences = [float(b) - float(a) for a, b in zip(first, second, strict=True)]
    expected = stats.mcnemar(first, second).p_value
    assert resampling.sign_flips(differences) == pytest.approx(expected)


def test_sign_flips_of_many_tasks_come_near_the_t_test_and_repeat_themselves() -> None:
    noise = np.random.default_rng(3).normal(0.1, 1.0, 150)
    found = resampling.sign_flips([*noise])
    assert found == pytest.approx(ttest_1samp(noise, 0.0).pvalue, abs=0.02)
    assert resampling.sign_flips([*noise]) == found
    assert resampling.sign_flips([*noise], seed=1) != found


def test_sign_flips_without_a_difference_or_with_one_prove_nothing() -> None:
    assert resampling.sign_flips([0.0] * 5) == 1.0
    assert resampling.sign_flips([0.0, -0.25, 0.0]) == resampling.sign_flips([0.5]) == 1.0
    with pytest.raises(ValueError, match="no task"):
        resampling.sign_flips([])


# --- bootstrap -------------------------------------------------------------------------------


def test_the_ratio_is_of_sums_and_not_a_mean_of_rates() -> None:
    assert resampling.ratio([1, 9], [1, 19]).value == 10 / 20


def test_the_ratio_difference_is_worked_by_hand() -> None:
    assert resampling.ratio_difference([1, 2, 0], [2, 2, 1], [2, 4, 4]).value == pytest.approx(0.2)


def test_the_same_outcomes_give_the_same_interval_again() -> None:
    values = list(np.random.default_rng(7).normal(size=20))
    assert resampling.mean(values) == resampling.mean(values)
    assert resampling.mean(values, seed=1) != resampling.mean(values)


def test_for_a_mean_the_interval_is_about_as_wide_as_students() -> None:
    values = np.random.default_rng(3).normal(size=12)
    student = ttest_1samp(values, 0).confidence_interval()
    found = resampling.mean(list(values)).interval
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
    found = resampling.ratio(parts.tolist(), totals.tolist()).interval
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=3e-3)


def test_tasks_are_resampled_so_assertions_of_a_task_count_as_one_observation() -> None:
    # ten tasks of twenty assertions that stand and fall together: the interval must be that of
    # ten observations, far wider than that of two hundred
    parts, totals = [20, 0] * 5, [20] * 10
    clustered = resampling.ratio(parts, totals).interval
    naive = stats.wilson(100, 200).interval
    assert clustered is not None
    assert naive is not None
    assert clustered.high - clustered.low > 3 * (naive.high - naive.low)


@pytest.mark.parametrize("n_tasks", [40, 1000])
def test_the_resamples_are_those_of_one_draw_whatever_their_blocks(n_tasks: int) -> None:
    values = np.random.default_rng(2).integers(9, size=n_tasks)
    drawn = np.random.default_rng(7).integers(n_tasks, size=(resampling.RESAMPLES, n_tasks))
    tail = norm.sf(
        math.sqrt(n_tasks / (n_tasks - 1)) * student_t.ppf((1 + stats.LEVEL) / 2, n_tasks - 1)
    )
    expected = np.quantile(values[drawn].sum(axis=1) / n_tasks, [tail, 1 - tail])
    found = resampling.mean(values.tolist(), seed=7).interval
    assert found is not None
    assert [found.low, found.high] == expected.tolist()


def test_the_bootstrap_of_three_thousand_tasks_takes_no_hundred_megabytes() -> None:
    values = np.random.default_rng(4).random(3000).tolist()
    resampling.mean(values[:2])  # what is imported on use
    tracemalloc.start()
    resampling.mean(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_a_few_tasks_that_differ_all_in_one_direction_prove_nothing() -> None:
    """As the exact test over the tasks has it: five have p = 0.06, six 0.03."""
    for few, sign in ((4, 0), (5, 0), (6, 1)):
        after = [1.0] * few + [0.0] * (40 - few)
        assert resampling.mean_difference([0.0] * 40, after).sign == sign
        assert (resampling.sign_flips(after) < 0.05) == bool(sign)
    both = resampling.mean_difference([1.0, 1.0], [0.0, 0.0])
    assert both.interval == Interval(-1.0, 0.0)


def test_one_task_gives_a_value_without_an_interval() -> None:
    found = resampling.mean([4.0])
    assert found.value == 4.0
    assert found.interval is None
    assert found.sign == 0


def test_a_value_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        resampling.mean([1.0, math.nan])


def test_outcomes_of_different_lengths_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        resampling.mean_difference([1.0, 2.0], [1.0])


def test_a_task_without_a_total_is_an_error() -> None:
    with pytest.raises(ValueError, match="leave out"):
        resampling.ratio([0, 1], [0, 2])


def test_scores_of_two_policies_have_the_p_and_the_interval_of_their_differences() -> None:
    before, after = np.linspace(0, 1, 12), np.linspace(0.1, 1.4, 12)
    found = paired_means(before, after)  # type: ignore[arg-type]
    assert found.p_value == resampling.sign_flips(list(after - before)) < 0.01
    assert found.difference == resampling.mean_difference(list(before), list(after))
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


def test_the_memory_of_sign_flips_does_not_grow_with_the_tasks() -> None:
    differences = [float(i % 7 - 3) for i in range(3000)]
    tracemalloc.start()
    try:
        resampling.sign_flips(differences)
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def test_a_value_that_is_not_finite_has_no_sign() -> None:
    for values in ([math.nan, 0.001], [0.001, math.inf]):
        with pytest.raises(ValueError, match="not a finite number"):
            resampling.sign_flips(values)


# --- coverage: does a 95% interval hold the truth 95 times of 100? ----------------------------


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
        found = resampling.ratio_difference(
            first.tolist(), second.tolist(), totals.tolist(), resamples=499
        )
        assert found.interval is not None
        covered += not found.interval.excludes(truth)
    assert 0.93 <= covered / runs <= 0.97
