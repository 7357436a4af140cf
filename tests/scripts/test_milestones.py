from __future__ import annotations

import pytest

from fieldkit.records import StepSummary
from scripts.milestones import milestones
from tests.scripts.evals import step

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
    said = " ".join(milestones(night()).sentences)
    assert "by step 9; the 2 steps after it bought the last tenth" in said


def test_what_the_last_third_bought_is_a_difference_of_trailing_means() -> None:
    turns = next(g for g in milestones(night()).gains if g.figure == "turns")
    assert turns.last_third == pytest.approx((3.1 + 3.3 + 2.8) / 3 - (3.5 + 4.3 + 4.1) / 3)


def test_what_was_never_reached_is_said_to_be_so() -> None:
    found = milestones([step(0, "a"), step(1, "b", stop_rate=0.3, turns=11.0, reward=0.1)])
    assert found.stops_90 is None
    assert "No step's rollouts stopped by themselves in 90 %" in found.sentences[0]


def test_a_figure_that_did_not_move_dates_nothing() -> None:
    flat = [step(i, "a", stop_rate=0.5, turns=6.0, reward=0.1) for i in range(1, 9)]
    assert all(g.most_by_step is None for g in milestones(flat).gains)


def test_a_night_without_a_step_has_no_milestone() -> None:
    assert milestones([step(0, "a")]).sentences == ("No step has been played yet.",)
