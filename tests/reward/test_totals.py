"""Sums over episodes: each figure of a page is one of them, or a quotient of two."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.records import StopReason
from reward.totals import totals
from tests.reward.build import trajectory

EPISODES = [
    trajectory(["ls", "TASK_COMPLETE"], passed=2, total=2, reward=0.1),
    trajectory(["ls"], passed=1, total=4, reward=0.2, k=1),
    trajectory(["ls", "ls", "ls"], passed=0, total=1, reward=0.3, k=2),
]


def test_episodes_are_counted_and_their_assertions_pooled() -> None:
    sums = totals(EPISODES)
    assert (sums.n, sums.passed, sums.turns, sums.tokens) == (3, 1, 6, 6)
    assert (sums.assertions_passed, sums.assertions_total) == (3, 7)
    assert sums.pass_rate == 1 / 3
    assert sums.assertion_rate == 3 / 7
    assert (sums.mean_turns, sums.mean_tokens) == (2.0, 2.0)


def test_who_ended_by_its_own_word_is_told_from_who_ran_out() -> None:
    sums = totals(EPISODES)
    stopped = sum(t.stop_reason is StopReason.TASK_COMPLETE for t in EPISODES)
    assert sums.stop_rate == stopped / 3
    assert sum(sums.stops.values()) == 3


def test_the_mean_reward_is_rounded_once_and_the_rewards_keep_their_order() -> None:
    sums = totals(EPISODES)
    assert sums.rewards == (0.1, 0.2, 0.3)
    assert sums.mean_reward == statistics.fmean([0.1, 0.2, 0.3])
    assert sums.mean_reward == pytest.approx(0.2)


def test_an_episode_to_which_no_reward_applies_is_no_reward_of_zero() -> None:
    late = replace(EPISODES[0], grade=Grade((), (RewardPart("won", None),)), reward=0.0)
    assert totals([*EPISODES[1:], late]).mean_reward == statistics.fmean([0.2, 0.3])
    assert totals([late]).mean_reward == 0.0


def test_a_task_without_assertions_divides_by_nothing() -> None:
    assert totals([trajectory(["ls"], passed=0, total=0, reward=0.0)]).assertion_rate == 0.0
