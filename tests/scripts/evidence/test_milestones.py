from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.records import StepSummary
from scripts.evidence.milestones import milestones
from scripts.evidence.tables import LATE_NOTE, late_table
from tests.scripts.evals import arm, collect, step, write_eval
from tests.scripts.made_night import HELD_OUT, after, make_night, summary, tasks

# the measured night on the easy corpus: stop rates and turns of eleven steps
STOPS = (0.16, 0.28, 0.38, 0.41, 0.56, 0.94, 1.0, 0.91, 1.0, 1.0, 1.0)
TURNS = (10.8, 9.7, 9.1, 8.5, 7.4, 4.1, 3.5, 4.3, 3.1, 3.3, 2.8)


def night() -> list[StepSummary]:
    played = [
        step(i, f"sha{i}", stop_rate=s, turns=t, reward=0.5)
        for i, (s, t) in enumerate(zip(STOPS, TURNS, strict=True), start=1)
    ]
    return [step(0, "sha0"), *played]


def test_the_first_steps_at_90_and_100_percent_are_named() -> None:
    found = milestones(night())
    assert (found.stops_90, found.stops_100) == (6, 7)


def test_the_lowest_turns_are_named_with_their_step() -> None:
    found = milestones(night())
    assert (found.lowest_turns_step, found.lowest_turns) == (11, 2.8)


def test_nine_tenths_of_the_fall_in_turns_are_dated() -> None:
    turns = next(g for g in milestones(night()).gains if g.figure == "turns")
    # trailing means of three: 9.87 at step 3 falls to 3.07 at step 11; 9/10 is 3.75
    assert turns.first == pytest.approx(9.867, abs=1e-3)
    assert turns.most_by_step == 9
    said = "Nine tenths of the fall in turns were there by step 9."
    assert said in milestones(night(), proven={"turns"}).sentences
    assert said not in milestones(night()).sentences


def test_what_was_reached_early_is_dated_there_though_the_figure_wavers_afterwards() -> None:
    turns = (12.0, 12.0, 12.0, 4.0, 4.0, 4.0, 5.5, 5.5, 4.0, 4.0, 4.0)
    played = [
        step(i, f"sha{i}", stop_rate=i / 11, turns=t, reward=0.5)
        for i, t in enumerate(turns, start=1)
    ]
    # trailing means: 12.0 at step 3, 4.0 at step 6, 5.0 at step 8, 4.0 at the end; 9/10 is 4.8
    assert "were there by step 6." in milestones(played, proven={"turns"}).sentences[-1]


def test_what_the_last_third_bought_is_a_difference_of_trailing_means() -> None:
    turns = next(g for g in milestones(night()).gains if g.figure == "turns")
    assert turns.last_third == pytest.approx((3.1 + 3.3 + 2.8) / 3 - (3.5 + 4.3 + 4.1) / 3)


def test_what_was_never_reached_is_said_to_be_so() -> None:
    found = milestones([step(0, "a"), step(1, "b", stop_rate=0.3, turns=11.0, reward=0.1)])
    assert found.stops_90 is None
    assert "In no step of training did 90 % of the attempts end by themselves." in found.sentences


def test_a_night_without_a_habit_is_dated_by_its_reward() -> None:
    rewards = (0.40, 0.40, 0.40, 0.48, 0.50, 0.50, 0.50, 0.50)
    played = [
        step(i, f"sha{i}", stop_rate=1.0, turns=3.0 - i / 100, reward=r)
        for i, r in enumerate(rewards, start=1)
    ]
    # trailing means of three: 0.40 at step 3 rises to 0.50 at step 7; 9/10 is 0.49, there at step 6
    assert milestones(played, proven={"reward"}).sentences == (
        "Nine tenths of the rise in reward were there by step 6.",
    )
    assert milestones(played).sentences == (
        "No rise of the steps' mean reward can be told from luck.",
    )


def test_a_reward_that_a_schedule_pays_by_is_no_gain() -> None:
    played = [step(i, "a", stop_rate=1.0, turns=3.0, reward=i / 10) for i in range(1, 9)]
    found = milestones(played, paid_alike=False)
    assert [gain.figure for gain in found.gains] == ["stop rate", "turns", "pass rate"]
    (said,) = found.sentences
    assert "reward.schedule changes what is paid" in said


def test_a_reward_that_a_draw_moves_is_no_gain_of_the_policy() -> None:
    played = [step(i, "a", stop_rate=1.0, turns=3.0, reward=i / 10) for i in range(1, 9)]
    (said,) = milestones(played, proven=None).sentences
    assert "the draw moves on to other tasks" in said


def test_a_figure_that_did_not_move_dates_nothing() -> None:
    flat = [step(i, "a", stop_rate=0.5, turns=6.0, reward=0.1) for i in range(1, 9)]
    assert all(g.most_by_step is None for g in milestones(flat).gains)


def test_a_night_without_a_step_has_no_milestone() -> None:
    assert milestones([step(0, "a")]).sentences == ("There is no finished step to read.",)


def test_where_nothing_can_be_told_from_luck_it_says_how_much_that_leaves_open(
    tmp_path: Path,
) -> None:
    """A night of eight steps, evaluated after the second and after the fourth as well."""
    evals, on = make_night(tmp_path, n_steps=8).folder.evals, tasks(HELD_OUT)
    early = arm("sha-2", on, passes=10, turns=9, stops=4)
    write_eval(evals, early, on, arm="step 2")
    write_eval(evals, after(on, "sha-4", lost=2), on, arm="step 4")
    table = late_table(collect(evals, on, [summary(n, 8) for n in range(9)]))
    assert table is not None
    assert table.notes == (
        "After step 2: stops up, turns down; the rest can be luck.",
        "After step 4 nothing can be told from luck; in tasks passed it may be up to 7.6 points"
        " worse or 7.6 better.",
        LATE_NOTE,
    )


def test_of_several_earlier_steps_one_that_barely_differs_is_luck(tmp_path: Path) -> None:
    """Six tasks more than step 2 passed, all won: p = 0.031 by itself, 0.094 of three."""
    evals, on = make_night(tmp_path, n_steps=8).folder.evals, tasks(HELD_OUT)
    for n, lost in ((2, 8), (4, 2), (6, 2)):  # and the newest has lost 2
        write_eval(evals, after(on, f"sha-{n}", lost), on, arm=f"step {n}")
    table = late_table(collect(evals, on, [summary(n, 8) for n in range(9)]))
    assert table is not None
    assert "p = 0.031" in table.rows[0][1]
    assert "tasks passed" not in table.notes[0].partition(";")[0]
