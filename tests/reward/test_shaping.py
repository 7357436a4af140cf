from __future__ import annotations

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import StopReason
from reward.rescore import rescore
from reward.reward import Reward
from reward.shaping import REWARDS, ExplainRow, RewardKind, RewardSettings, explain, reward
from tests.reward.build import grade, trajectory


def row(case: str, rows: tuple[ExplainRow, ...]) -> ExplainRow:
    return next(r for r in rows if case in r.case)


@pytest.mark.parametrize(
    ("passed", "total", "turns", "expected"),
    [
        (1, 1, 4, 1 - 0.2 * 4 / 12),  # the document's "~0.93"
        (6, 6, 12, 0.8),  # the document: the same pass dragged out
        (3, 5, 12, 0.4),  # the document: three of five in twelve turns
        (1, 4, 1, 0.25 - 0.2 / 12),
        (0, 3, 0, 0.0),
    ],
)
def test_the_shaped_reward_is_the_rate_less_the_share_of_turns(
    passed: int, total: int, turns: int, expected: float
) -> None:
    assert reward(grade(passed, total), turns, RewardSettings()) == pytest.approx(expected)


def test_a_pass_in_four_turns_is_worth_0_933() -> None:
    assert round(reward(grade(5, 5), 4, RewardSettings()), 3) == 0.933


def test_a_fact_that_two_assertions_state_is_paid_once_where_that_is_asked_for() -> None:
    """Of three that hold in four turns, one is implied by another: 3/4 and 2/3."""
    results = (
        AssertionResult("file_exists", "a.txt", True),
        AssertionResult("file_contents_contain", "a.txt", True),
        AssertionResult("file_unchanged", "b.txt", True),
        AssertionResult("file_contents_match_regex", "c.txt", False, "no such file"),
    )
    price = 0.2 * 4 / 12
    assert reward(Grade(results), 4, RewardSettings()) == pytest.approx(3 / 4 - price)
    once = RewardSettings(pay_implied=False)
    assert reward(Grade(results), 4, once) == pytest.approx(2 / 3 - price)


def test_explain_counts_a_fact_both_ways() -> None:
    twice, once = explain(RewardSettings()), explain(RewardSettings(pay_implied=False))
    assert row("wrong contents", twice).reward == pytest.approx(0.5 - 0.2 * 4 / 12)
    assert row("wrong contents", once).reward == pytest.approx(-0.2 * 4 / 12)
    assert "0.433" in row("wrong contents", once).note
    assert "-0.067" in row("wrong contents", twice).note


DONE, LAST_TURN = StopReason.TASK_COMPLETE, StopReason.MAX_TURNS


@pytest.mark.parametrize("kind", ["shaped", "binary"])
def test_a_pass_earns_its_bonus_whatever_the_kind_and_however_it_ended(kind: str) -> None:
    plain = RewardSettings(kind=kind)
    bonus = RewardSettings(kind=kind, pass_bonus=0.5)
    for stop in (DONE, LAST_TURN):
        earned = reward(grade(4, 4), 4, bonus, stop) - reward(grade(4, 4), 4, plain, stop)
        assert earned == pytest.approx(0.5)
    assert reward(grade(3, 4), 4, bonus, DONE) == reward(grade(3, 4), 4, plain, DONE)
    assert reward(grade(0, 0), 4, bonus) == reward(grade(0, 0), 4, plain), "no assertion, no pass"


@pytest.mark.parametrize("stop", list(StopReason))
def test_the_finish_bonus_is_for_finished_work_that_ended_by_itself(stop: StopReason) -> None:
    plain, bonus = RewardSettings(), RewardSettings(finish_bonus=0.5)
    more = reward(grade(4, 4), 4, bonus, stop) - reward(grade(4, 4), 4, plain, stop)
    assert more == pytest.approx(0.5 if stop in (DONE, StopReason.ENV_DONE) else 0)
    assert reward(grade(3, 4), 4, bonus, stop) == reward(grade(3, 4), 4, plain, stop)


def test_turns_after_the_work_is_done_take_their_share_of_the_finish_bonus() -> None:
    """A bonus of 0.6 over 12 turns: 0.05 for each of two."""
    bonus = RewardSettings(finish_bonus=0.6)
    at_once, later = (reward(grade(2, 2), 5, bonus, DONE, n_overtime=n) for n in (0, 2))
    assert at_once - later == pytest.approx(0.1)
    unpaid = (grade(2, 2), LAST_TURN), (grade(1, 2), DONE)
    for g, stop in unpaid:
        assert reward(g, 5, bonus, stop, n_overtime=2) == reward(g, 5, bonus, stop)


def test_a_false_claim_costs_and_a_true_one_and_silence_do_not() -> None:
    costs = RewardSettings(false_claim_penalty=0.3)
    price = 0.2 * 4 / 12
    assert reward(grade(3, 4), 4, costs, DONE) == pytest.approx(0.75 - price - 0.3)
    assert reward(grade(3, 4), 4, costs, LAST_TURN) == pytest.approx(0.75 - price)
    assert reward(grade(3, 4), 4, costs, StopReason.ENV_DONE) == pytest.approx(0.75 - price)
    assert reward(grade(4, 4), 4, costs, DONE) == pytest.approx(1 - price)


@pytest.mark.parametrize("stop", [StopReason.CONTEXT_FULL, StopReason.TIME_LIMIT])
def test_an_episode_that_was_cut_off_can_be_charged_all_its_turns(stop: StopReason) -> None:
    full = RewardSettings(charge_cut_off=True)
    assert reward(grade(1, 4), 3, RewardSettings(), stop) == pytest.approx(0.25 - 0.05)
    assert reward(grade(1, 4), 3, full, stop) == pytest.approx(0.25 - 0.2)
    assert reward(grade(1, 4), 3, full, DONE) == pytest.approx(0.25 - 0.05)


def test_explain_shows_what_completing_claiming_and_being_cut_off_are_worth() -> None:
    today = explain(RewardSettings())
    assert "worth 0.200, 0.000 of it" in row("four of five", today).note
    assert "costs 0.000" in row("says that it is done", today).note
    assert row("context was full", today).note == "charged like an early stop"
    assert row("context was full", today).reward == pytest.approx(0.25 - 0.2 / 12)
    asked = explain(RewardSettings(pass_bonus=0.5, false_claim_penalty=0.3, charge_cut_off=True))
    assert "worth 0.700, 0.500 of it" in row("four of five", asked).note
    finished = explain(RewardSettings(finish_bonus=1.0))
    assert row("passes in 12", finished).note == "dragging it out costs 1.133"
    assert row("one more turn after", finished).reward == pytest.approx(-0.2 / 12 - 1 / 12)
    assert "0.083 of it is taken" in row("one more turn after", finished).note
    assert not [r for r in today if "after the work" in r.case]
    only = explain(RewardSettings(turn_penalty=0, finish_bonus=1.0))
    assert row("one more turn", only).note == "free while the work is undone"
    assert "worth 0.200, 0.000 of it" in row("four of five", finished).note
    assert "costs 0.300" in row("says that it is done", asked).note
    assert row("says that it is done", asked).reward == pytest.approx(0.25 - 0.2 / 3 - 0.3)
    assert "12 turns" in row("context was full", asked).note
    assert row("context was full", asked).reward == pytest.approx(0.25 - 0.2)
    assert row("stops at once with nothing", asked).reward == pytest.approx(-0.2 / 12 - 0.3)


def test_a_schedule_changes_what_the_episodes_of_a_step_are_paid_by() -> None:
    settings = RewardSettings(
        turn_penalty=0.4, pass_bonus=0.5, schedule={"turn_penalty": [[1, 0.0], [11, 0.4]]}
    )
    paid = [reward(grade(1, 1), 12, settings.at_step(n)) for n in (1, 6, 11, 30)]
    assert paid == pytest.approx([1.5, 1.3, 1.1, 1.1])
    assert reward(grade(1, 1), 12, settings) == pytest.approx(1.1)
    assert RewardSettings(turn_penalty=0.4).at_step(3) == RewardSettings(turn_penalty=0.4)


def test_a_schedule_of_another_key_or_without_points_is_refused() -> None:
    with pytest.raises(BadInput, match=r"reward\.schedule: 'kind' is none of turn_penalty, pass"):
        RewardSettings(schedule={"kind": [[1, 0.0]]})
    with pytest.raises(BadInput, match=r"reward\.schedule\.pass_bonus: give pairs"):
        RewardSettings(schedule={"pass_bonus": []})


def test_the_binary_reward_pays_only_for_a_pass() -> None:
    binary = RewardSettings(kind="binary")
    assert reward(grade(5, 5), 12, binary) == 1.0
    assert reward(grade(4, 5), 1, binary) == 0.0


def test_an_attempt_without_assertions_earns_no_rate() -> None:
    assert reward(grade(0, 0), 12, RewardSettings()) == pytest.approx(-0.2)


def test_more_turns_than_the_settings_allow_is_an_error() -> None:
    with pytest.raises(ValueError, match="13 turns"):
        reward(grade(1, 1), 13, RewardSettings())


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"kind": "shapely"}, "reward.kind"),
        ({"turn_penalty": -0.1}, "reward.turn_penalty"),
        ({"turn_penalty": float("nan")}, "reward.turn_penalty"),
        ({"max_turns": 0}, "reward.max_turns"),
        ({"pass_bonus": -1}, "reward.pass_bonus"),
        ({"finish_bonus": -1}, "reward.finish_bonus"),
        ({"false_claim_penalty": float("inf")}, "reward.false_claim_penalty"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(settings: dict[str, float], key: str) -> None:
    with pytest.raises(BadInput, match=key):
        RewardSettings(**settings)  # type: ignore[arg-type]


def test_explain_warns_that_quitting_at_once_beats_honest_work() -> None:
    rows = explain(RewardSettings())
    assert row("quarter", rows).reward == pytest.approx(0.2333, abs=1e-4)
    assert row("40 %", rows).reward == pytest.approx(0.2)
    assert "WARNING" in row("40 %", rows).note


def test_explain_does_not_warn_where_the_penalty_is_gentle() -> None:
    assert "WARNING" not in row("40 %", explain(RewardSettings(turn_penalty=0.05))).note


def test_explain_says_that_binary_never_teaches_to_stop() -> None:
    assert "free" in row("one more turn", explain(RewardSettings(kind="binary"))).note


def test_explain_shows_that_two_rollouts_lose_the_spread() -> None:
    rows = explain(RewardSettings())
    assert "+0.71, -0.71" in row("K = 2, far apart", rows).note
    assert "+0.70, -0.70" in row("K = 2, one turn apart", rows).note
    assert "0, 0, 0, 0" in row("all the same", rows).note


def test_explain_shows_the_advantages_of_the_scale_that_the_run_has() -> None:
    rows = explain(RewardSettings(), group_size=2, scale="mean")
    assert "+0.59, -0.59" in row("K = 2, far apart", rows).note
    assert "the spread is kept" in row("any two that differ", rows).note
    assert "gives the same" not in row("your K = 2", rows).note


def test_explain_warns_about_your_own_small_group_only() -> None:
    assert "WARNING" in row("your K = 3", explain(RewardSettings(), group_size=3)).note
    assert not [r for r in explain(RewardSettings(), group_size=4) if "your K" in r.case]


def test_explain_works_at_every_length_of_episode() -> None:
    for turns in (1, 2, 3, 40):
        assert len(explain(RewardSettings(max_turns=turns))) >= 10


def test_a_reward_from_outside_pays_episodes_and_explains_itself() -> None:
    """One function and one line; the turns earn nothing by themselves unless it says so."""

    def quick_passes(grade: Grade, n_turns: int, settings: RewardSettings) -> float:
        return (1.0 if grade.passed else 0.0) / (1 + n_turns)

    REWARDS.register("quick", RewardKind("early passes", quick_passes))
    try:
        paid = Reward(RewardSettings(kind="quick"), credit="turn")
        three = trajectory(["ls"] * 3, 1, 1, 0.0).turns
        assert paid.of_episode(grade(1, 1), three, StopReason.MAX_TURNS) == 0.25
        stored = [trajectory(["ls"], 1, 1, 0.5), trajectory(["ls", "ls"], 0, 1, 0.0, k=1)]
        first, second = paid.of_turns(stored)
        assert first[0] > 0 > second[0] == second[1]
        assert rescore(stored[0], paid).reward == 0.5
        assert explain(paid.settings)[0].reward == 0.2
    finally:
        REWARDS.remove("quick")
    with pytest.raises(BadInput, match=r"reward\.kind: expected one of 'shaped', 'binary'"):
        RewardSettings(kind="quick")


def test_two_rewards_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="reward 'binary' is registered twice"):
        REWARDS.register("binary", REWARDS["shaped"])
