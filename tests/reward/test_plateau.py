"""A night that has learned and learns no more is told from one that still rises."""

from __future__ import annotations

import pytest

from reward.plateau import FEWEST_IN_WINDOW, rise
from tests.reward.plateau_alarm import PLATEAUS, RISING, SLOWED, alarms

WAVE = (0.01, -0.01)


def waved(*values: float) -> list[float]:
    """The values with a small noise, without which there is no doubt."""
    return [v + WAVE[i % 2] for i, v in enumerate(values)]


def test_too_few_steps_say_nothing() -> None:
    assert rise([0.1] * (3 * FEWEST_IN_WINDOW - 1)) is None
    assert rise([0.1] * 3 * FEWEST_IN_WINDOW) is not None


def test_gain_and_recent_gain_are_differences_of_window_means() -> None:
    found = rise([0.0] * 8 + [0.4] * 8 + [0.5] * 8)
    assert found is not None
    assert found.window == 8
    assert found.gain == pytest.approx(0.5)
    assert found.recent == pytest.approx(0.1)
    # 15 differences in the last two windows, one of them 0.1; 2 / window from two means
    assert found.error == pytest.approx((0.1**2 / 15 / 2 * 2 / 8) ** 0.5)
    # their 2 · 15² / (3 · 15 − 1) = 10.2 degrees of freedom: t at 99 % is 2.75
    assert found.most == pytest.approx(0.1 + 2.755 * found.error, abs=1e-4)


def test_a_long_night_is_compared_by_quarters() -> None:
    found = rise([0.0] * 40 + [0.4] * 20 + [0.5] * 20)
    assert found is not None
    assert found.window == 20
    assert found.recent == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("rewards", "over"),
    [
        (waved(*[0.1] * 8, *[0.5] * 16), True),
        (waved(*[0.1] * 24), False),  # nothing was learned
        (waved(*[0.5] * 8, *[0.1] * 16), False),  # it fell
        (waved(*[0.1] * 8, *[0.3] * 8, *[0.5] * 8), False),  # it rises
        (waved(*[0.1] * 8, *[0.6] * 8, *[0.5] * 8), True),  # it has begun to fall
    ],
)
def test_a_plateau_is_a_rise_that_is_over(rewards: list[float], over: bool) -> None:
    found = rise(rewards)
    assert found is not None
    assert found.over is over


@pytest.mark.parametrize("name", RISING)
def test_a_night_that_rises_is_seldom_ended(name: str) -> None:
    assert alarms(RISING[name], 100, 100).share <= 0.1


def test_a_default_night_ends_soon_after_its_habit_is_gone() -> None:
    found = alarms(PLATEAUS["a default night, done by step 14"], 60, 100)
    assert found.share >= 0.9
    assert found.median is not None
    assert 24 <= found.median <= 36


@pytest.mark.parametrize("name", SLOWED)
def test_a_slow_rise_behind_a_quick_one_counts_as_a_plateau(name: str) -> None:
    """As docs/running.md says, where it tells when to leave the rule off."""
    assert alarms(SLOWED[name], 100, 50).share > 0.9
