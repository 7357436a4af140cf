"""Nights as observations: worked by hand, and where there are too few to say anything."""

from __future__ import annotations

import pytest

from scripts.compare.by_nights import student, welch


def test_the_interval_of_three_nights_is_students_with_two_degrees_of_freedom() -> None:
    """Mean 0.04, standard deviation 0.02; t at 97.5 % is 4.303."""
    found = student([0.02, 0.04, 0.06])
    assert found.value == pytest.approx(0.04)
    assert found.interval is not None
    reach = 4.3027 * 0.02 / 3**0.5
    ends = [found.interval.low, found.interval.high]
    assert ends == pytest.approx([0.04 - reach, 0.04 + reach], abs=1e-5)


def test_one_night_has_no_interval() -> None:
    assert student([0.1]).interval is None
    assert student([0.1, 0.1]).interval is None, "of nights that are alike"


def test_welch_of_two_arms_with_the_same_spread_is_students_with_two_degrees_of_freedom() -> None:
    """Means 0.3 apart, variances 0.02: t = 0.3 / √0.02 = 2.121, whose p is 0.168."""
    assert welch([0.4, 0.6], [0.7, 0.9]) == pytest.approx(0.168, abs=1e-3)


@pytest.mark.parametrize(("one", "other"), [([0.1], [0.3, 0.4]), ([0.2, 0.2], [0.3, 0.3])])
def test_an_arm_of_one_night_and_nights_that_do_not_differ_have_no_test(
    one: list[float], other: list[float]
) -> None:
    assert welch(one, other) is None
