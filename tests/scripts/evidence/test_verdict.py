from __future__ import annotations

import pytest

from fieldkit.eval.matched import Arm, MatchedBaseComparison, TaskOutcome
from scripts.evidence.verdict import Habit, Verdict, Work, judge


def arm(name: str, passed: set[int], stopped: set[int], held: int, turns: int, n: int) -> Arm:
    """Five assertions a task; those that do not pass hold `held` of them."""
    return Arm(
        name,
        {
            f"t{i}": TaskOutcome(
                passed=i in passed,
                stopped=i in stopped,
                assertions_passed=5 if i in passed else held,
                assertions_total=5,
                turns=turns,
                tokens=20 * turns,
                seconds=1.0,
            )
            for i in range(n)
        },
    )


def verdict(before: Arm, after: Arm) -> Verdict:
    comparison = MatchedBaseComparison([before, after], before.name)
    return judge(
        comparison.row(before.name), comparison.row(after.name), comparison.paired(after.name)
    )


N = 158
EVERY = set(range(N))


def test_the_documents_night_broke_the_habit_and_its_three_passes_are_luck() -> None:
    before = arm("warm start", set(range(10)), set(), 2, 12, N)
    after = arm("step 34", set(range(13)), set(range(154)), 2, 5, N)
    found = verdict(before, after)
    assert found.habit is Habit.GONE
    said = " ".join(found.details)
    assert "154 of 158" in said
    assert "13 of 158 tasks passed, the warm start 10 (+1.9 points" in said
    assert "p = 0.25; that can be luck" in said
    assert "Of the 154 it ended, 13 were done." in said


@pytest.mark.parametrize(
    ("passes", "work"),
    [(60, Work.BETTER), (10, Work.WORSE), (34, Work.NOT_DISTINGUISHABLE)],
)
def test_the_work_is_judged_by_its_tests(passes: int, work: Work) -> None:
    before = arm("warm start", set(range(32)), set(), 3, 12, N)
    after = arm("step 9", set(range(passes)), EVERY, 3, 4, N)
    # two tasks more, in the same order, hold three assertions more: too few to tell from luck
    assert verdict(before, after).work is work


def test_stopping_early_at_the_price_of_the_work_is_called_a_trade() -> None:
    before = arm("warm start", set(range(100)), set(), 3, 12, N)
    after = arm("step 3", set(range(60)), EVERY, 1, 2, N)
    found = verdict(before, after)
    assert found.habit is Habit.GONE
    assert found.work is Work.WORSE
    assert "traded one habit for another" in found.headline


def test_more_stops_that_are_not_nearly_all_leave_the_habit_weaker() -> None:
    before = arm("warm start", set(), set(), 2, 12, N)
    found = verdict(before, arm("step 9", set(), set(range(90)), 2, 8, N))
    assert found.habit is Habit.REDUCED
    assert "weaker, not gone" in found.headline


def test_a_few_more_stops_are_luck() -> None:
    before = arm("warm start", set(), {0, 1}, 2, 12, N)
    found = verdict(before, arm("step 9", set(), {0, 1, 2, 3, 4}, 2, 12, N))
    assert found.habit is Habit.UNCHANGED
    assert "did not move" in found.headline


def test_fewer_stops_are_said_plainly() -> None:
    before = arm("warm start", set(), set(range(80)), 2, 8, N)
    assert verdict(before, arm("step 9", set(), set(), 2, 12, N)).habit is Habit.WORSE


def test_a_policy_that_always_stopped_had_no_habit_to_break() -> None:
    before = arm("warm start", set(), EVERY, 2, 4, N)
    assert verdict(before, arm("step 9", set(), EVERY, 2, 4, N)).habit is Habit.NEVER_THERE


def test_passes_up_and_assertions_down_is_mixed() -> None:
    before = arm("warm start", set(range(10)), set(), 4, 12, N)
    after = arm("step 9", set(range(40)), EVERY, 1, 4, N)
    assert verdict(before, after).work is Work.MIXED


def test_what_cannot_be_told_says_how_much_worse_it_may_still_be() -> None:
    before = arm("warm start", set(range(10)), set(), 2, 12, 24)
    after = arm("step 9", set(range(10)), set(range(24)), 2, 4, 24)
    found = verdict(before, after)
    assert found.work is Work.NOT_DISTINGUISHABLE
    assert "points worse" in found.details[-1]


def test_nothing_is_said_about_tasks_it_ended_where_it_ended_none() -> None:
    before = arm("warm start", set(), set(), 2, 12, 24)
    found = verdict(before, arm("step 9", set(), set(), 2, 12, 24))
    assert "Of the" not in " ".join(found.details)


def test_what_cannot_be_told_says_how_many_tasks_would_tell() -> None:
    before = arm("warm start", set(range(20)), set(), 2, 12, 60)
    after = arm("step 9", set(range(5, 23)), set(range(60)), 2, 4, 60)
    found = verdict(before, after)
    assert (
        "With 8 of them differing, a change of 13.1 points is found in 80 of 100"
        in (found.details[-1])
    )
    assert "one of 3.3 takes about 987 tasks" in found.details[-1]
