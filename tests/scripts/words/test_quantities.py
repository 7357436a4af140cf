from __future__ import annotations

import pytest

from fieldkit.eval.resampling import mean_difference
from fieldkit.eval.stats import Estimate, Interval
from scripts.words import quantities


@pytest.mark.parametrize(
    ("value", "text"), [(0.0312, "+3.1"), (-0.0312, "−3.1"), (0.0004, "0.0"), (-0.0004, "0.0")]
)
def test_a_difference_is_in_points_and_what_rounds_to_zero_has_no_sign(
    value: float, text: str
) -> None:
    assert quantities.points(value) == text


def test_an_interval_stands_in_brackets_behind_its_number() -> None:
    found = Estimate(0.019, Interval(-0.014, 0.057))
    assert quantities.estimate(found) == "+1.9 [−1.4 to +5.7]"


def test_a_number_without_an_interval_stands_alone() -> None:
    assert quantities.estimate(Estimate(0.5, None)) == "+50.0"


@pytest.mark.parametrize(
    ("p", "text"), [(1.0, "1.00"), (0.25, "0.25"), (0.0412, "0.041"), (1e-40, "<0.001")]
)
def test_a_p_value_has_the_digits_that_count(p: float, text: str) -> None:
    assert quantities.p_value(p) == text


def test_a_difference_that_is_the_same_on_each_task_has_no_interval_to_show() -> None:
    """Its resamples are all alike: `[0.0 to 0.0]` would read as certainty about other tasks."""
    still, fewer = mean_difference([3.0] * 8, [3.0] * 8), mean_difference([12.0] * 8, [3.0] * 8)
    assert quantities.estimate(still) == "0.0 [on each task]"
    assert quantities.estimate(fewer, as_points=False) == "−9.0 [on each task]"
    assert not quantities.is_alike(Estimate(0.5, None))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.001, "0 s"), (3.14, "3.1 s"), (89, "89 s"), (125, "2 min"), (7300, "2 h 02 min")],
)
def test_seconds_are_said_as_a_person_says_them(seconds: float, said: str) -> None:
    assert quantities.duration(seconds) == said
