from __future__ import annotations

from dataclasses import replace

import pytest

from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.records import Action, ActionKind, Signal
from reward.rescore import Fate, Spread, replay_groups, rescore, spread, summarise
from reward.reward import Reward
from reward.shaping import RewardSettings
from tests.reward.build import group, parse_literal, parse_prose, trajectory

SHAPED = Reward()
PROSE = 'echo "Task complete."'


def test_the_same_settings_give_the_stored_reward() -> None:
    stored = trajectory(["mv a b", "TASK_COMPLETE"], 2, 2, 1 - 0.2 * 2 / 12)
    again = rescore(stored, SHAPED, parse_literal)
    assert again.fate is Fate.SAME
    assert again.reward == pytest.approx(stored.reward)


def test_a_prose_stop_would_have_ended_the_episode_there() -> None:
    stored = trajectory(["mv a b", PROSE, PROSE, PROSE], 2, 2, 1 - 0.2 * 4 / 12)
    again = rescore(stored, SHAPED, parse_prose)
    assert again.fate is Fate.STOPS_EARLIER
    assert (again.turns, again.turns_saved) == (2, 2)
    assert again.reward == pytest.approx(1 - 0.2 * 2 / 12)


def test_commands_after_the_earlier_stop_make_the_new_reward_an_estimate() -> None:
    certain = trajectory(["mv a b", PROSE], 2, 2, 0.9)
    estimate = trajectory(["mv a b", PROSE, "rm b"], 1, 2, 0.4)
    assert rescore(certain, SHAPED, parse_prose).commands_skipped == 0
    assert rescore(estimate, SHAPED, parse_prose).commands_skipped == 1


def test_echoes_after_the_stop_are_no_skipped_commands() -> None:
    repeated = rescore(trajectory(["mv a b", *[PROSE] * 10], 2, 2, 0.8), SHAPED, parse_prose)
    assert (repeated.turns, repeated.turns_saved, repeated.commands_skipped) == (2, 9, 0)
    mixed = rescore(trajectory([PROSE, "rm b", PROSE], 1, 2, 0.4), SHAPED, parse_prose)
    assert mixed.commands_skipped == 1


def test_the_turns_after_the_stop_are_the_seconds_saved() -> None:
    again = rescore(trajectory(["mv a b", PROSE, PROSE, PROSE], 2, 2, 0.9), SHAPED, parse_prose)
    assert (again.seconds, again.seconds_saved) == pytest.approx((0.2, 0.2))


def test_the_spread_is_mean_median_and_sample_deviation() -> None:
    assert spread([0.0, 1.0, 5.0]) == Spread(2.0, 1.0, 7**0.5)
    assert spread([0.25]) == Spread(0.25, 0.25, 0.0)
    assert spread([]) == Spread(0.0, 0.0, 0.0)


def test_a_prose_stop_on_the_last_turn_counts_as_a_stop() -> None:
    again = rescore(trajectory(["ls", PROSE], 1, 1, 0.9), SHAPED, parse_prose)
    assert again.fate is Fate.STOPS_EARLIER
    assert again.turns_saved == 0


def test_an_episode_that_would_have_gone_on_is_set_apart() -> None:
    def never_done(text: str) -> Action:
        return Action(ActionKind.RUN, text)

    again = rescore(trajectory(["ls", "TASK_COMPLETE"], 1, 1, 0.9), SHAPED, never_done)
    assert again.fate is Fate.GOES_ON


def test_an_episode_that_would_have_run_another_command_is_set_apart() -> None:
    def louder(text: str) -> Action:
        return Action(ActionKind.RUN, text.upper())

    assert rescore(trajectory(["ls"], 1, 1, 0.9), SHAPED, louder).fate is Fate.DIVERGES


def test_a_stop_before_the_point_of_divergence_wins() -> None:
    again = rescore(trajectory([PROSE, "ls"], 1, 1, 0.9), SHAPED, parse_prose)
    assert again.fate is Fate.STOPS_EARLIER


def near_misses() -> list[float]:
    return [0.75 - 0.2 * turns / 12 for turns in (3, 6)]


def test_binary_reward_silences_a_group_of_near_misses() -> None:
    members = [
        trajectory(["ls"] * turns, 3, 4, r, k=k)
        for k, (turns, r) in enumerate(zip((3, 6), near_misses(), strict=True))
    ]
    groups, summary = replay_groups(
        [group(members, Signal.LEARNABLE)], Reward(RewardSettings(kind="binary"))
    )
    assert groups[0].signal is Signal.STUCK
    assert (summary.without_signal_stored, summary.without_signal) == (0, 1)
    assert (summary.zero_rewards_stored, summary.zero_rewards) == (0, 2)


def test_a_group_with_an_unplayed_continuation_stays_undecided() -> None:
    members = [
        trajectory(["ls", "TASK_COMPLETE"], 1, 1, 0.9, k=0),
        trajectory(["ls"], 1, 1, 0.95, k=1),
    ]
    groups, summary = replay_groups(
        [group(members, Signal.LEARNABLE)], SHAPED, lambda text: Action(ActionKind.RUN, text)
    )
    assert groups[0].signal is None
    assert summary.undecided_groups == 1


def test_an_episode_to_which_no_part_of_the_reward_applies_gives_a_group_no_signal() -> None:
    """Two are paid 1. The third is paid nothing, and is no part of what is compared."""
    grades = [Grade((), (RewardPart("right", value),)) for value in (1.0, 1.0, None)]
    members = [
        replace(trajectory(["ls"], 0, 1, g.reward or 0.0, k=k), grade=g)
        for k, g in enumerate(grades)
    ]
    (again,), summary = replay_groups([group(members, Signal.STUCK)], SHAPED)
    assert again.signal is SHAPED.signal(members) is Signal.STUCK
    assert summary.without_signal == summary.without_signal_stored == 1


def test_a_group_is_paid_by_the_values_at_its_step() -> None:
    """λ rises from 0 at step 1 to 0.6 at step 3; an episode has two of twelve turns."""
    paid = Reward(RewardSettings(schedule={"turn_penalty": [[1, 0.0], [3, 0.6]]}))
    members = [trajectory(["ls"] * 2, 1, 1, 0.9, k=k) for k in range(2)]
    stored = [group(members, Signal.SATURATED, step=n) for n in (1, 2, 3)]
    again, _ = replay_groups(stored, paid)
    assert [g.trajectories[0].reward for g in again] == pytest.approx([1.0, 0.95, 0.9])


def test_the_summary_counts_stops_and_turns_over_an_evaluation() -> None:
    stored = [
        trajectory(["ls", PROSE, PROSE], 1, 1, 0.95, task_id="a"),
        trajectory(["ls", "ls"], 0, 1, -0.1, task_id="b"),
    ]
    summary = summarise([rescore(t, SHAPED, parse_prose) for t in stored])
    assert summary.fates[Fate.STOPS_EARLIER] == 1
    assert summary.fates[Fate.SAME] == 1
    assert (summary.turns_stored, summary.turns_saved) == (5, 1)
    assert (summary.seconds_stored, summary.seconds_saved) == pytest.approx((0.5, 0.1))
    assert summary.stored_rewards.median == pytest.approx(0.425)
    assert summary.rewards.mean == pytest.approx((1 - 0.2 * 2 / 12 + -0.2 * 2 / 12) / 2)
    assert summary.n_groups == 0


def test_fewer_turns_than_were_played_is_an_error() -> None:
    with pytest.raises(ValueError, match="turns"):
        rescore(trajectory(["ls"] * 5, 1, 1, 0.9), Reward(RewardSettings(max_turns=4)))
