"""The mean of arms by task, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from fieldkit.eval.matched import TaskOutcome
from fieldkit.eval.resampling import sign_flips
from fieldkit.eval.stats import holm
from scripts.compare.mean_change import Outcomes, adjusted, by_task, changes

N = 8


def arm(passed: set[int], turns: int) -> Outcomes:
    return {
        f"t{i}": TaskOutcome(
            passed=i in passed,
            stopped=True,
            assertions_passed=int(i in passed),
            assertions_total=1,
            turns=turns,
            tokens=10,
            seconds=1.0,
        )
        for i in range(N)
    }


BEFORE = arm({0, 1}, 12)
AFTER = (arm({0, 1, 2, 3, 4, 5}, 4), arm({1, 2, 3, 4, 5}, 2))


def test_of_every_task_the_mean_over_the_arms_counts() -> None:
    assert by_task(AFTER, "passed") == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert by_task(AFTER, "turns") == [3.0] * N


def test_a_change_is_tested_over_the_tasks() -> None:
    found = changes([BEFORE], AFTER)
    # One task was lost in one of two arms, four were won in both.
    differences = [-0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert found["passed"].estimate.value == pytest.approx(3.5 / N)
    assert found["passed"].p == pytest.approx(sign_flips(differences))
    assert found["turns"].estimate.value == pytest.approx(-9)
    assert (found["stopped"].estimate.value, found["stopped"].p) == (0.0, 1.0)


def test_the_interval_of_a_change_in_few_tasks_reaches_to_zero() -> None:
    found = changes([BEFORE], AFTER[:1])["passed"].estimate
    assert found.value == pytest.approx(0.5)
    assert found.interval is not None
    assert found.interval.low == 0.0


def test_the_rows_of_a_table_are_adjusted_measure_by_measure() -> None:
    rows = [changes([BEFORE], AFTER), changes([BEFORE], [BEFORE])]
    expected = holm([row["passed"].p for row in rows])
    assert [row["passed"].p for row in adjusted(rows)] == pytest.approx(expected)
    assert adjusted([]) == []


def test_a_change_has_a_sign_only_where_test_and_interval_agree() -> None:
    found = changes([BEFORE], AFTER)
    assert found["turns"].sign == -1
    assert found["passed"].p > 0.05
    assert found["passed"].sign == 0
