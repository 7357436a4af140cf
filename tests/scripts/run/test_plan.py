"""How many steps fit into the night."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.run.plan import (
    BASE_TIMES,
    PAGE_SECONDS,
    Measured,
    expected_step_seconds,
    has_time_for_base,
    planned_steps,
    scaled_eval_seconds,
    seconds_allotted,
    seconds_left,
)


def measured(*steps: float, other: float = 0.0, final: float = 0.0) -> Measured:
    return Measured(steps, other, final)


def test_a_fixed_number_is_taken_as_it_is() -> None:
    assert planned_steps(34, 45, measured(1e6, other=1e6)) == 34


def test_the_first_step_is_taken_before_anything_was_measured() -> None:
    assert planned_steps("auto", 45, measured(other=44 * 60)) == 1


def test_steps_fill_the_minutes_that_the_last_evaluation_leaves() -> None:
    # 45 min = 2700 s; 600 s gone, 100 s a step already, 500 s for the end: 1500 s are 15 more steps
    assert planned_steps("auto", 45, measured(100, other=600, final=500)) == 16


def test_a_policy_that_got_faster_gets_more_steps() -> None:
    slow = planned_steps("auto", 45, measured(170, 170, 170))
    fast = planned_steps("auto", 45, measured(170, 30, 30))
    assert fast > slow


def test_what_the_first_step_was_spared_counts_for_those_to_come() -> None:
    first = Measured((100.0,), 600.0, 500.0, spared_seconds=50.0)
    assert planned_steps("auto", 45, first) == 1 + (2700 - 600 - 100 - 500) // 150
    assert seconds_left(3, first) == 2 * 150 + 500


def test_time_that_is_over_ends_the_night_where_it_is() -> None:
    assert planned_steps("auto", 10, measured(300, 400, other=10)) == 2


def test_evaluating_at_the_end_does_not_call_for_more_steps_than_time() -> None:
    before = measured(100, 100, other=600, final=300)
    steps = planned_steps("auto", 20, before)
    done = Measured((100.0,) * steps, 600 + 300, 0.0)
    assert planned_steps("auto", 20, done) == steps


@given(
    st.lists(st.floats(1, 500), min_size=1, max_size=20),
    st.floats(0, 3000),
    st.floats(0, 1000),
    st.floats(1, 120),
)
def test_a_plan_keeps_within_the_minutes_or_adds_nothing(
    steps: list[float], other: float, final: float, minutes: float
) -> None:
    now = Measured(tuple(steps), other, final)
    planned = planned_steps("auto", minutes, now)
    assert planned >= len(steps)
    more = planned - len(steps)
    expected = sum(steps) + other + final + more * expected_step_seconds(steps)
    assert more == 0 or expected <= minutes * 60 + 1e-6


def test_the_next_step_takes_as_long_as_the_last_ones() -> None:
    assert expected_step_seconds([900, 100, 70, 50]) == 70
    assert expected_step_seconds([900, 100]) == 500
    assert expected_step_seconds([60]) == 60


def test_hours_in_which_the_machine_was_suspended_are_expected_of_no_other_step() -> None:
    assert [expected_step_seconds([100, *last]) for last in ([90, 30_000], [30_000, 90])] == [
        100,
        100,
    ]


def test_a_step_of_no_time_does_not_plan_for_ever() -> None:
    assert planned_steps("auto", 1, measured(0.0, 0.0)) < 10**6


def test_an_evaluation_shrinks_with_the_turns() -> None:
    assert scaled_eval_seconds(800, 12.0, 3.0) == 200
    assert scaled_eval_seconds(800, 0.0, 3.0) == 800


def test_the_time_left_is_steps_and_the_last_evaluation() -> None:
    assert seconds_left(5, measured(100, 100, final=60)) == pytest.approx(360)
    assert seconds_left(5, measured()) is None
    assert seconds_left(1, measured(100, 100)) == 0


def test_the_time_left_holds_every_evaluation_that_is_still_to_come() -> None:
    """The newest adapter is evaluated; the last one is not, nor are those on the way."""
    now = Measured((100.0,) * 5, 0, 0.0, eval_seconds=60)
    assert seconds_left(7, now) == pytest.approx(2 * 100 + 60)
    assert seconds_left(12, now, eval_every=5) == pytest.approx(7 * 100 + 2 * 60)
    due = Measured((100.0,) * 5, 0, 60, eval_seconds=60)
    assert seconds_left(12, due, eval_every=5) == pytest.approx(7 * 100 + 3 * 60)
    assert seconds_left(5, due, eval_every=5) == 60


def test_before_a_step_was_measured_the_time_left_is_what_the_night_was_given() -> None:
    unmeasured = measured(other=300)
    assert seconds_left(1, unmeasured) is None
    assert seconds_allotted("auto", 45, unmeasured) == 45 * 60 - 300
    assert seconds_allotted("auto", 4, unmeasured) == 0
    assert seconds_allotted(20, 45, unmeasured, deadline_in=3600) == 3600
    assert seconds_allotted(20, 45, unmeasured) is None


def test_a_deadline_leaves_time_for_the_last_evaluation_and_the_page() -> None:
    now = Measured((100.0, 100.0), 600, 300, eval_seconds=300)
    left = 10 * 100 + 300 + PAGE_SECONDS
    assert planned_steps("auto", 1, now, deadline_in=left) == 12
    assert planned_steps("auto", 1, now, deadline_in=left - 1) == 11


def test_a_deadline_that_is_over_ends_the_night_where_it_is() -> None:
    assert planned_steps("auto", 60, measured(100, 100), deadline_in=-5) == 2


def test_a_deadline_cuts_a_fixed_number_and_never_exceeds_it() -> None:
    assert planned_steps(5, 60, measured(100), deadline_in=250 + PAGE_SECONDS) == 3
    assert planned_steps(5, 60, measured(100), deadline_in=1e6) == 5


def test_evaluations_on_the_way_are_part_of_what_a_step_costs() -> None:
    now = Measured((100.0,), 0, 200, eval_seconds=200)
    # 1000 s: 200 for the last evaluation, and 100 + 200 / 2 a step with one in two evaluated
    assert planned_steps("auto", 1100 / 60, now, eval_every=2) == 1 + 4
    assert planned_steps("auto", 1100 / 60, now) == 1 + 8


def test_time_left_over_after_the_last_evaluation_buys_no_step_that_cannot_be_evaluated() -> None:
    done = Measured((100.0, 100.0), 500, 0.0, eval_seconds=300)
    assert planned_steps("auto", (700 + 250) / 60, done) == 2


def test_the_base_arm_is_played_in_the_time_that_the_last_step_leaves() -> None:
    def gone(seconds: float) -> Measured:
        return Measured((100.0,), seconds - 100, 0.0, start_eval_seconds=300.0)

    least = BASE_TIMES * 300 + PAGE_SECONDS
    assert has_time_for_base("auto", 45, gone(45 * 60 - least))
    assert not has_time_for_base("auto", 45, gone(45 * 60 - least + 1))
    assert has_time_for_base(5, 45, gone(1e6))
    assert has_time_for_base(5, 45, gone(1e6), deadline_in=least)
    assert not has_time_for_base(5, 45, gone(0), deadline_in=least - 1)
    assert has_time_for_base(5, 45, gone(0), deadline_in=least + 200, before=200)
    assert not has_time_for_base(5, 45, gone(0), deadline_in=least + 199, before=200)
