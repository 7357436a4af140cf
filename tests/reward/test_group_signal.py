from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.errors import BadInput
from fieldkit.eval.grade import RewardPart
from fieldkit.records import Signal, StopReason
from fieldkit.training.advantages import group_advantages
from reward.group_signal import draw_of, group_signal
from reward.shaping import RewardSettings, reward
from tests.reward.build import grade, group, trajectory


def test_rewards_that_differ_are_learnable() -> None:
    assert group_signal([0.9, 0.8], [grade(1, 1), grade(1, 1)]) is Signal.LEARNABLE


def test_equal_rewards_that_all_passed_are_saturated() -> None:
    assert group_signal([0.8, 0.8], [grade(2, 2), grade(2, 2)]) is Signal.SATURATED


def test_equal_rewards_that_did_not_all_pass_are_stuck() -> None:
    assert group_signal([0.4, 0.4], [grade(3, 5), grade(3, 5)]) is Signal.STUCK


def test_one_failure_among_equal_rewards_is_stuck() -> None:
    assert group_signal([0.8, 0.8], [grade(2, 2), grade(1, 2)]) is Signal.STUCK


def test_a_nan_reward_is_an_error() -> None:
    with pytest.raises(ValueError, match="nan"):
        group_signal([0.4, math.nan], [grade(1, 2), grade(1, 2)])


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(BadInput, match="group_size"):
        group_signal([0.4], [grade(1, 2)])


def test_lengths_that_differ_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 rewards but 1 grades"):
        group_signal([0.4, 0.5], [grade(1, 2)])


episodes = st.tuples(st.integers(0, 7), st.integers(1, 7), st.integers(1, 12)).filter(
    lambda e: e[0] <= e[1]
)


@given(st.lists(episodes, min_size=2, max_size=8))
def test_a_group_is_learnable_exactly_when_some_advantage_is_not_zero(
    group: list[tuple[int, int, int]],
) -> None:
    grades = [grade(passed, total) for passed, total, _ in group]
    rewards = [
        reward(g, turns, RewardSettings()) for g, (_, _, turns) in zip(grades, group, strict=True)
    ]
    learnable = group_signal(rewards, grades) is Signal.LEARNABLE
    assert learnable == any(group_advantages(rewards))


def test_an_attempt_that_had_no_room_is_no_failure_of_the_policy() -> None:
    """The others differ by their turns alone, so the task has nothing left to teach."""
    passed = [trajectory(["ls"] * k + ["TASK_COMPLETE"], 1, 1, 1.0 - k / 10, k) for k in range(3)]
    unbegun = replace(
        passed[0], k=3, turns=(), stop_reason=StopReason.CONTEXT_FULL, grade=grade(0, 1)
    )
    drawn = draw_of(group([*passed, unbegun], Signal.LEARNABLE))
    assert (drawn.passed, drawn.played, drawn.mixed) == (3, 3, False)
    assert drawn.signal is Signal.SATURATED


def test_an_attempt_to_which_no_reward_applies_is_no_failure_either() -> None:
    """Else a group that teaches nothing would count as mixed, and no spare task be played."""
    solved = replace(grade(1, 1), rewards=(RewardPart("won", 1.0),))
    unpaid = replace(grade(0, 1), rewards=(RewardPart("won", None),))
    played = [trajectory(["ls"], 1, 1, 1.0, k) for k in range(4)]
    graded = [replace(t, grade=solved if t.k else unpaid) for t in played]
    drawn = draw_of(group(graded, Signal.SATURATED))
    assert (drawn.passed, drawn.played, drawn.mixed) == (3, 3, False)
