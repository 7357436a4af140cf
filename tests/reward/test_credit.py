"""Advantages by turn: hand-worked groups, and what they promise about episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.records import Signal, StopReason, Task, Trajectory
from fieldkit.training.advantages import Scale, group_advantages
from reward.credit import (
    CREDITS,
    Rows,
    episode_advantages,
    group_states,
    rloo_advantages,
    state_advantages,
    states_of,
    turn_advantages,
)
from reward.reward import Reward
from reward.shaping import REWARDS, RewardSettings, earned_by_turns
from rollout.group import make_group
from scripts.run.config import AdvantageSettings
from tests.reward.build import grade, trajectory

PRICE = 0.1
TASK = Task("t", "clawgym", "Do it.", {})


def played(*progress: float | None, k: int = 0) -> Trajectory:
    """An attempt whose turns the environment saw make this progress."""
    made = trajectory(["ls"] * len(progress), passed=1, total=1, reward=0.5, k=k)
    turns = zip(made.turns, progress, strict=True)
    return replace(made, turns=tuple(replace(turn, reward=p) for turn, p in turns))


def paid(*progress: float) -> tuple[float, ...]:
    """What turns earn that make this progress each, at `PRICE` a turn."""
    return tuple(p - PRICE for p in progress)


def test_a_group_worked_out_by_hand() -> None:
    """Both do the work in turn 1. The first then stops in turn 2, the second goes on to turn 3.

    Rewards to go: 0.8, -0.1, 0 and 0.7, -0.2, -0.1; means 0.75, -0.15, -0.05.
    """
    first, second = turn_advantages((0.8, 0.7), (paid(1, 0), paid(1, 0, 0)), scale="mean")
    assert first == pytest.approx((0.05, 0.05))
    assert second == pytest.approx((-0.05, -0.05, -0.05))


def test_an_episode_that_ended_is_compared_at_later_turns_by_what_no_turn_earned() -> None:
    """The first is paid 1 at its end, after one turn; the second nothing, after four. Rewards to go
    are 1 and 0 at each of the four turns, so the mean is 1/2 at all of them."""
    first, second = turn_advantages((1.0, 0.0), ((0.0,), (0.0,) * 4), scale="mean")
    assert first == (0.5,)
    assert second == (-0.5,) * 4


def test_rloo_credits_a_turn_with_its_episode_against_the_others() -> None:
    first, second, third = rloo_advantages(
        (1.0, 0.0, 0.5), (paid(1), paid(0, 0), paid(0.5)), (), "mean"
    )
    assert first == pytest.approx((0.75,))
    assert second == pytest.approx((-0.75, -0.75))
    assert third == pytest.approx((0.0,))


def test_the_turn_that_stops_is_not_blamed_for_the_work_before_it() -> None:
    """The first fails at the work and stops, the second does it and dawdles."""
    bad_but_brief, good_but_long = paid(0, 0), paid(1, 0, 0, 0, 0)
    rewards = (sum(bad_but_brief), sum(good_but_long))
    stopped, dawdled = turn_advantages(rewards, (bad_but_brief, good_but_long))
    assert stopped[0] < 0 < stopped[1]
    assert dawdled[0] > 0 > dawdled[1]


def test_stopping_before_work_that_the_others_still_did_is_blamed() -> None:
    early, patient = paid(0.5, 0), paid(0.5, 0, 0.5, 0)
    stopped, _ = turn_advantages((sum(early), sum(patient)), (early, patient))
    assert stopped[1] < 0


def test_the_first_turn_has_the_advantage_of_the_episode() -> None:
    rewards = (0.9, 0.4, 0.1)
    got = turn_advantages(rewards, (paid(1), paid(0.4, 0.2), paid(0, 0, 0.4)), scale="mean")
    assert [turns[0] for turns in got] == pytest.approx(group_advantages(rewards, "mean"))


def test_an_environment_that_reports_no_progress_still_pays_for_the_end() -> None:
    """Without progress only the prices of turns fall due as they go by."""
    first, second = turn_advantages((0.9, 0.3), ((-PRICE,), (-PRICE, -PRICE)), scale="mean")
    assert first == pytest.approx((0.3,))
    assert second == pytest.approx((-0.3, -0.3))


def test_std_brings_every_group_to_the_same_size() -> None:
    turns = (paid(1, 0), paid(0.5, 0, 0.25), paid(0))
    rewards = tuple(sum(t) for t in turns)
    flat = [a for row in turn_advantages(rewards, turns) for a in row]
    assert math.sqrt(sum(a * a for a in flat) / len(flat)) == pytest.approx(1, rel=1e-3)


def test_equal_rewards_teach_no_turn_anything() -> None:
    """Signal is decided by rewards; a group without it must not train through its turns."""
    turns = (paid(1, 0), paid(0, 1))
    assert turn_advantages((0.8, 0.8), turns) == ((0.0, 0.0), (0.0, 0.0))
    assert state_advantages((0.8, 0.8), turns, ((0, 1), (0, 0))) == ((0.0, 0.0), (0.0, 0.0))


# --- what falls due at a turn ---------------------------------------------------------------------


def earned(settings: RewardSettings, ended: Trajectory) -> tuple[float, ...]:
    return earned_by_turns(ended.turns, ended.grade, settings, ended.stop_reason)


def ended(
    *progress: float | None, passed: int, total: int, stop: StopReason, k: int = 0
) -> Trajectory:
    return replace(played(*progress, k=k), grade=grade(passed, total), stop_reason=stop)


BONUS = RewardSettings(turn_penalty=0, pass_bonus=0.5)
DONE, CONTEXT_FULL = StopReason.TASK_COMPLETE, StopReason.CONTEXT_FULL


def test_the_bonus_falls_due_at_the_turn_that_completes_the_work() -> None:
    """One of three assertions holds at the start: 1/3, 2/3, 1 and the stop."""
    got = earned(BONUS, ended(1 / 3, 1 / 3, 0, passed=3, total=3, stop=DONE))
    assert got == pytest.approx((1 / 3, 1 / 3 + 0.5, 0))


def test_a_turn_that_spoils_the_work_loses_the_bonus_and_one_that_mends_it_earns_it_again() -> None:
    mended = ended(1, -0.5, 0.5, passed=2, total=2, stop=DONE)
    assert earned(BONUS, mended) == pytest.approx((1.5, -1.0, 1.0))
    spoiled = ended(1, -0.5, 0, passed=1, total=2, stop=DONE)
    assert earned(BONUS, spoiled) == pytest.approx((1.5, -1.0, 0))


def test_no_turn_completes_what_held_from_the_start_or_what_nobody_saw() -> None:
    assert earned(BONUS, ended(0, 0, passed=2, total=2, stop=DONE)) == (0, 0)
    assert earned(BONUS, ended(None, None, passed=2, total=2, stop=DONE)) == (0, 0)
    assert earned(BONUS, replace(ended(0, passed=1, total=1, stop=DONE), turns=())) == ()


def test_a_false_claim_is_charged_to_the_turn_that_makes_it() -> None:
    costs = RewardSettings(turn_penalty=0, false_claim_penalty=0.3)
    assert earned(costs, ended(0.5, 0, passed=1, total=2, stop=DONE)) == pytest.approx((0.5, -0.3))
    assert earned(costs, ended(0.5, 0, passed=1, total=2, stop=CONTEXT_FULL)) == (0.5, 0)
    assert earned(costs, ended(0.5, 0.5, passed=2, total=2, stop=DONE)) == (0.5, 0.5)


def test_the_finish_bonus_falls_due_at_the_turn_that_ends_finished_work() -> None:
    finish = RewardSettings(turn_penalty=0, finish_bonus=0.5)
    assert earned(finish, ended(1, 0, passed=2, total=2, stop=DONE)) == (1, 0.5)
    assert earned(finish, ended(1, 0, passed=2, total=2, stop=CONTEXT_FULL)) == (1, 0)
    assert earned(finish, ended(0.5, 0, passed=1, total=2, stop=DONE)) == (0.5, 0)


def test_each_turn_that_begins_with_the_work_done_and_does_not_end_it_pays_for_itself() -> None:
    """A bonus of 0.6 over 6 turns, 0.1 a turn. The second attempt spoils the work and mends it:
    turns 2 and 4 (from 1) begin with it done, 3 does not."""
    finish = RewardSettings(turn_penalty=0, finish_bonus=0.6, max_turns=6)
    checks = ended(1, 0, 0, 0, passed=2, total=2, stop=DONE)
    assert earned(finish, checks) == pytest.approx((1, -0.1, -0.1, 0.6))
    mends = ended(1, -0.5, 0.5, 0, 0, passed=2, total=2, stop=DONE)
    assert earned(finish, mends) == pytest.approx((1, -0.6, 0.5, -0.1, 0.6))
    never = ended(1, 0, 0, passed=2, total=2, stop=StopReason.MAX_TURNS)
    assert earned(finish, never) == (1, 0, 0), "what is not paid is not taken from"
    unseen = ended(None, None, None, passed=2, total=2, stop=DONE)
    assert earned(finish, unseen) == (0, 0, 0.6), "nobody saw when the work was done"


def test_by_state_the_sooner_stop_is_preferred_where_the_work_is_done_and_only_there() -> None:
    """Rewards to go in the state 1: 0.6 for the stop at once; 0.5 and then 0.6 for the other."""
    rule = Reward(
        RewardSettings(turn_penalty=0, finish_bonus=0.6, max_turns=6), scale="mean", credit="state"
    )
    group = [
        ended(0.5, 0, 0.5, 0, passed=2, total=2, stop=DONE),
        ended(0.5, 0.5, 0, 0, passed=2, total=2, stop=DONE, k=1),
    ]
    slow_work, slow_stop = rule.of_turns([*map(rule.paid, group)])
    third = 0.1 / 3
    assert slow_work[3] == pytest.approx(third)
    assert slow_stop[2:] == pytest.approx((-2 * third, third))
    assert slow_work[1:3] == pytest.approx((third, third))
    assert slow_stop[1] == pytest.approx(-2 * third), "its later check, not its work"


def test_by_state_the_finish_bonus_prefers_a_stop_where_the_work_is_done_and_work_where_not() -> (
    None
):
    """Two attempts finish the first half. One stops there; the other goes on, finishes and stops;
    a third finishes and checks until its turns are used up. By hand, rewards to go: in the state
    0.5, 0 for the stop and 1.5 for the work; in the state 1, 1 for the stop and 0 for the check."""
    rule = Reward(RewardSettings(turn_penalty=0, finish_bonus=1.0), scale="mean", credit="state")
    group = [
        ended(0.5, 0, passed=1, total=2, stop=DONE),
        ended(0.5, 0.5, 0, passed=2, total=2, stop=DONE, k=1),
        ended(0.5, 0.5, 0, passed=2, total=2, stop=StopReason.MAX_TURNS, k=2),
    ]
    quits, finishes, checks = rule.of_turns([*map(rule.paid, group)])
    assert finishes[2] == pytest.approx(0.5)
    assert checks[2] == pytest.approx(-0.5)
    assert quits[1] < 0 < finishes[1]


def test_the_turns_that_a_cut_off_episode_is_charged_fall_due_at_its_last() -> None:
    """λ = 0.6 over 6 turns: 0.1 a turn, and four that were never taken."""
    full = RewardSettings(turn_penalty=0.6, max_turns=6, charge_cut_off=True)
    got = earned(full, ended(0.5, 0, passed=1, total=2, stop=CONTEXT_FULL))
    assert got == pytest.approx((0.4, -0.5))


@pytest.mark.parametrize("credit", ["turn", "state"])
def test_what_turns_earn_accounts_for_the_whole_reward(credit: str) -> None:
    """Every option at once: the reward is what the turns earned, where nothing held before them."""
    settings = RewardSettings(
        turn_penalty=0.6,
        max_turns=6,
        pass_bonus=0.5,
        finish_bonus=0.3,
        false_claim_penalty=0.3,
        charge_cut_off=True,
    )
    group = [
        ended(0.5, 0.5, 0, passed=2, total=2, stop=DONE),
        ended(0.5, 0, passed=1, total=2, stop=DONE, k=1),
        ended(0, 0.5, passed=1, total=2, stop=CONTEXT_FULL, k=2),
        ended(1, 0, 0, passed=2, total=2, stop=DONE, k=3),  # one turn too many
    ]
    rule = Reward(settings, scale="mean", credit=credit)
    group = [*map(rule.paid, group)]
    assert [t.reward for t in group] == pytest.approx([1.5, 0.0, -0.1, 1.45])
    assert [sum(earned(settings, t)) for t in group] == pytest.approx([1.5, 0.0, -0.1, 1.45])
    true, false, *_ = rule.of_turns(group)
    assert true[2] > false[1], "a stop with the work done against one with it undone"


def test_by_state_a_false_claim_is_worse_than_going_on_from_the_same_state() -> None:
    """Both are half done after a turn. One claims, at 0.3; the other goes on and completes, at 0.5.

    Rewards to go in the state 0.5: −0.3, and 1.0 then 0 in the state 1; the mean is 0.35.
    """
    settings = RewardSettings(turn_penalty=0, pass_bonus=0.5, false_claim_penalty=0.3)
    rule = Reward(settings, scale="mean", credit="state")
    claims = ended(0.5, 0, passed=1, total=2, stop=DONE)
    works = ended(0.5, 0.5, 0, passed=2, total=2, stop=DONE, k=1)
    first, second = rule.of_turns([rule.paid(claims), rule.paid(works)])
    assert first == pytest.approx((-0.65, -0.65))
    assert second == pytest.approx((0.65, 0.65, 0))


# --- by state -------------------------------------------------------------------------------------


def by_state(*progress: tuple[float, ...], scale: Scale = "mean") -> tuple[tuple[float, ...], ...]:
    """Advantages of episodes whose turns make this progress and whose reward is what they earn."""
    turns = [paid(*p) for p in progress]
    return state_advantages([sum(t) for t in turns], turns, [states_of(p) for p in progress], scale)


def test_the_state_before_a_turn_is_the_progress_so_far() -> None:
    assert states_of((0.5, None, 0.25, 0.25)) == (0, 0.5, 0.5, 0.75)
    assert states_of((0.3,)) == (0,)
    assert states_of(()) == ()
    assert states_of((0.1, 0.2, 0))[2] == states_of((0.3, 0))[1], "rounding makes no state"


def test_without_any_progress_the_number_of_the_turn_stands_for_the_state() -> None:
    """Rewards 1 after two turns and 0 after three: each first turn has ±0.5, and not 1 − 2/5."""
    states = group_states([(None, None), (None, None, None)])
    assert states == [(0, 1), (0, 1, 2)]
    found = state_advantages([1.0, 0.0], [(0, 0), (0, 0, 0)], states, "mean")
    assert found == ((0.5, 0.5), (-0.5, -0.5, 0.0))
    assert group_states([(None, None), (0.0, None)]) == [(0, 0), (0, 0)]


def test_a_group_by_state_worked_out_by_hand() -> None:
    """Both do the work in turn 1; the first stops in turn 2, the second in turn 3.

    Rewards to go: 0.8, -0.1 and 0.7, -0.2, -0.1. State 0: 0.8, 0.7, mean 0.75. State 1: -0.1, -0.2
    and -0.1, mean -0.4/3. So both turns that stop are better than going on, whenever they come.
    """
    first, second = by_state((1, 0), (1, 0, 0))
    assert first == pytest.approx((0.05, 0.1 / 3))
    assert second == pytest.approx((-0.05, -0.2 / 3, 0.1 / 3))


def test_stopping_with_half_the_work_is_compared_with_going_on_from_there() -> None:
    """The first stops at a half; the second gets there a turn later and does the rest.

    Rewards to go: 0.3, -0.1 and 0.6, 0.7, 0.3, -0.1. State 0: 0.3, 0.6, 0.7, mean 1.6/3. State
    0.5: -0.1, 0.3, mean 0.1. State 1: alone, so 0.
    """
    stopped, went_on = by_state((0.5, 0), (0, 0.5, 0.5, 0))
    assert stopped == pytest.approx((0.3 - 1.6 / 3, -0.2))
    assert went_on == pytest.approx((0.6 - 1.6 / 3, 0.7 - 1.6 / 3, 0.2, 0.0))


def test_by_state_std_brings_every_group_to_the_same_size() -> None:
    flat = [a for row in by_state((1, 0), (0.5, 0, 0.25), (0,), scale="std") for a in row]
    assert math.sqrt(sum(a * a for a in flat) / len(flat)) == pytest.approx(1, rel=1e-3)


def test_unequal_rewards_always_give_some_turn_an_advantage() -> None:
    """Where no turn makes progress, all are in one state, and turns differ by their price."""
    flat = [a for row in by_state((0, 0, 0), (0,)) for a in row]
    assert max(flat) > 0 > min(flat)


def test_a_run_can_credit_by_state() -> None:
    paid_by = Reward(scale="mean", credit=AdvantageSettings(credit="state").credit)
    group = [replace(played(1.0, None), reward=0.8), replace(played(1.0, 0, None, k=1), reward=0.7)]
    of_turns = make_group(1, TASK, group, paid_by).turn_advantages
    assert of_turns is not None
    assert of_turns[0][0] > 0 > of_turns[1][0]


def test_what_an_environment_pays_by_step_is_credited_to_the_step() -> None:
    """A wrong guess costs 0.1 and the right one earns 1. Rewards to go: 0.8, 0.9, 1 and 1, 0, 0.

    By episode the slow one's right guess is punished (-0.1).
    """

    def game(*steps: float, k: int) -> Trajectory:
        won = sum(steps)
        graded = Grade((), (RewardPart("reward", won),))
        return replace(played(*steps, k=k), grade=graded, reward=won)

    group = [game(-0.1, -0.1, 1.0, k=0), game(1.0, k=1)]
    slow, quick = Reward(scale="mean").of_turns(group)
    assert slow == pytest.approx((-0.1, 0.45, 0.5))
    assert quick == pytest.approx((0.1,))


def test_reward_parts_that_add_up_to_no_finite_number_are_an_error() -> None:
    graded = Grade((), (RewardPart("reward", 1e308, weight=10.0),))
    with pytest.raises(ValueError, match="weighted reward parts add up to inf"):
        Reward().of_episode(graded, (), StopReason.TASK_COMPLETE)


def test_a_reward_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        turn_advantages((math.nan, 0.1), (paid(1), paid(0)))
    with pytest.raises(BadInput, match="group_size"):
        turn_advantages((0.1,), (paid(1),))


def test_a_turn_earns_its_progress_less_its_price() -> None:
    settings = RewardSettings(turn_penalty=0.3, max_turns=3)
    turns = played(0.5, None, 0.25).turns
    assert REWARDS["shaped"].of_turns(turns, settings) == pytest.approx((0.4, -0.1, 0.15))


def test_a_binary_reward_pays_for_the_end_alone() -> None:
    turns = played(0.5, 0.5).turns
    assert REWARDS["binary"].of_turns(turns, RewardSettings(kind="binary")) == (0.0, 0.0)


def test_a_rule_from_outside_credits_the_turns_of_a_run() -> None:
    def last_turn_takes_all(
        rewards: Sequence[float], earned: Rows, states: Rows, scale: Scale
    ) -> tuple[tuple[float, ...], ...]:
        rows = episode_advantages(rewards, earned, states, scale)
        return tuple((*(0.0 for _ in row[1:]), row[-1]) for row in rows)

    CREDITS.register("last", last_turn_takes_all)
    try:
        settings = AdvantageSettings(scale="mean", credit="last")
        group = [replace(played(0, 0), reward=1.0), replace(played(0, k=1), reward=0.0)]
        paid_by = Reward(scale=settings.scale, credit=settings.credit)
        assert make_group(1, TASK, group, paid_by).turn_advantages == ((0.0, 0.5), (-0.5,))
    finally:
        CREDITS.remove("last")
    with pytest.raises(
        BadInput, match=r"advantages\.credit: expected one of 'episode', 'turn', 'state'"
    ):
        AdvantageSettings(credit="last")


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="credit rule 'turn' is registered twice"):
        CREDITS.register("turn", episode_advantages)


def test_credit_by_episode_gives_every_turn_what_its_episode_has() -> None:
    group = [replace(played(0.5, None), reward=0.4), replace(played(1.0, k=1), reward=0.9)]
    by_episode = Reward(credit="episode")
    first, second = by_episode.of_group(group)
    assert by_episode.of_turns(group) == ((first, first), (second,))
    assert first < 0 < second


@pytest.mark.parametrize("credit", sorted(CREDITS))
def test_an_attempt_that_could_not_begin_is_compared_with_nothing(credit: str) -> None:
    """Its opening left no room for a turn: what it earned says nothing of the policy."""
    reward = Reward(RewardSettings(), scale="mean", credit=credit)
    good, bad = (replace(played(x, k=k), reward=x) for k, x in enumerate((1.0, 0.0)))
    cut = replace(good, k=2, turns=(), stop_reason=StopReason.CONTEXT_FULL, reward=0.2)
    *of_two, of_cut = reward.of_turns([good, bad, cut])
    assert of_two == list(reward.of_turns([good, bad]))
    assert of_cut == ()
    assert reward.of_group([good, bad, cut]) == (0.5, -0.5, 0.0)
    assert reward.signal([good, bad, cut]) is Signal.LEARNABLE
    assert reward.signal([good, cut, replace(cut, k=3)]) is Signal.STUCK
