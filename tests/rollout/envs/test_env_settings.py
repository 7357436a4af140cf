"""When an attempt counts as passed."""

from __future__ import annotations

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval.grade import RewardPart
from rollout.envs.env_settings import graded

TWO = (RewardPart("right", 1.0, 0.5), RewardPart("short", 1.0, 0.25), RewardPart("turns", 9.0, 0.0))


def test_reward_means_the_weighted_sum_where_no_part_is_called_so() -> None:
    assert graded(TWO, "reward >= 0.75", "task t").passed
    assert not graded(TWO, "reward > 0.75", "task t").passed
    own = (*TWO, RewardPart("reward", 0.0, 1.0))
    assert not graded(own, "reward >= 0.75", "task t").passed


def test_a_sum_of_which_no_part_applies_is_not_passed() -> None:
    assert not graded([RewardPart("wordle", None, 1.0)], "reward <= 0", "task t").passed


def test_another_name_is_told_the_parts_that_there_are() -> None:
    with pytest.raises(BadInput, match=r"names 'correct', .* parts: right, short, turns"):
        graded(TWO, "correct == 1", "task t")
    with pytest.raises(BadInput, match="parts: none"):
        graded([], "reward == 1", "task t")
