from __future__ import annotations

import math

import numpy
import pytest
import torch

from fieldkit.errors import BadInput
from fieldkit.training.advantages import group_advantages, group_size_warning, leave_one_out


def test_advantages_match_a_group_worked_by_hand() -> None:
    # the document's cleanest example of a spread
    rewards = (0.05, 0.633, 0.05, 0.55)
    mean = 1.283 / 4
    sigma = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
    expected = [(r - mean) / (sigma + 1e-4) for r in rewards]
    assert group_advantages(rewards) == pytest.approx(expected)
    assert expected[1] == pytest.approx(0.9926, abs=1e-4)


def test_the_mean_scale_keeps_how_far_apart_they_were() -> None:
    assert group_advantages((0.2, 0.4, 0.9), scale="mean") == pytest.approx((-0.3, -0.1, 0.4))


def test_advantages_sum_to_zero() -> None:
    assert sum(group_advantages((0.1, 0.7, 0.33, 0.9))) == pytest.approx(0.0, abs=1e-12)


def test_rewards_may_be_an_array_or_a_tensor() -> None:
    plain = (1.0, 0.0, 0.5, 0.5)
    for rewards in (numpy.array(plain, dtype="f4"), torch.tensor(plain)):
        for scale in ("std", "mean"):
            found = group_advantages(rewards, scale)  # type: ignore[arg-type]
            assert (found, type(found[0])) == (group_advantages(plain, scale), float)


def test_left_out_of_its_own_baseline() -> None:
    # 1 − (0 + 0.5)/2, 0 − (1 + 0.5)/2, 0.5 − (1 + 0)/2
    assert leave_one_out((1.0, 0.0, 0.5)) == pytest.approx((0.75, -0.75, 0.0))
    assert leave_one_out((0.0, 1.0)) == (-1.0, 1.0)
    by_std = leave_one_out((1.0, 0.0, 0.5), "std")
    assert by_std == pytest.approx([1.5 * a for a in group_advantages((1.0, 0.0, 0.5))])
    with pytest.raises(BadInput, match="group_size"):
        leave_one_out((0.5,))


def test_equal_rewards_give_exact_zeros() -> None:
    assert group_advantages((0.1 + 0.2,) * 4) == (0.0, 0.0, 0.0, 0.0)


def test_rewards_that_differ_by_rounding_only_are_equal() -> None:
    half_in_six, three_fifths_in_twelve = 0.5 - 0.2 * (6 / 12), 3 / 5 - 0.2 * (12 / 12)
    rewards = (half_in_six, three_fifths_in_twelve, half_in_six, 0.1 + 0.2 + 0.1)
    assert len(set(rewards)) > 1
    assert group_advantages(rewards) == (0.0,) * 4


def test_a_pair_gives_plus_and_minus_0_71_however_far_apart() -> None:
    for pair in ((0.0, 1.0), (0.4, 0.5)):
        assert group_advantages(pair) == pytest.approx((-0.7071, 0.7071), abs=2e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_an_error_that_names_the_rollout(bad: float) -> None:
    with pytest.raises(ValueError, match="k=2"):
        group_advantages((0.1, 0.2, bad, 0.3))


def test_a_group_of_one_is_refused_and_names_the_setting() -> None:
    with pytest.raises(BadInput, match="group_size"):
        group_advantages((0.5,))


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(BadInput, match="std or mean"):
        group_advantages((0.5, 0.6), scale="median")  # type: ignore[arg-type]


def test_a_warning_is_given_below_four_rollouts_only() -> None:
    assert "gives the same" in (group_size_warning(2) or "")
    assert "K = 3" in (group_size_warning(3) or "")
    assert group_size_warning(4) is None
    with pytest.raises(BadInput):
        group_size_warning(1)
