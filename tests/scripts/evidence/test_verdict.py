from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fieldkit.eval.matched import Arm, MatchedArms, PairedRow, TaskOutcome
from fieldkit.eval.power import detectable_change
from fieldkit.eval.stats import holm, paired_proportions
from scripts.evidence.learning import Ended, Sampled, Training, trends
from scripts.evidence.verdict import (
    PASSES,
    STOPPED,
    Habit,
    Learning,
    Verdict,
    Work,
    judge,
    lost_since,
)
from tests.scripts.evals import step


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


def verdict(before: Arm, after: Arm, training: Training | None = None) -> Verdict:
    comparison = MatchedArms([before, after], before.name)
    return judge(
        comparison.row(before.name),
        comparison.row(after.name),
        comparison.paired(after.name),
        training,
    )


def rising(n: int) -> Training:
    """`n` steps whose rollouts stop by themselves more and more."""
    steps = [step(i, f"sha-{i}", stop_rate=i / n, turns=12.0 - i) for i in range(1, n + 1)]
    return Training(n, trends(steps))


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
    assert found.learning is Learning.DONE
    assert found.headline.startswith("Done. The habit is gone: it ends 154 of 158 tasks by itself")
    assert "Of those 13 of 154 were done." in said


@pytest.mark.parametrize(
    ("passes", "work"),
    [(60, Work.BETTER), (10, Work.WORSE), (34, Work.NOT_DISTINGUISHABLE)],
)
def test_the_work_is_judged_by_its_tests(passes: int, work: Work) -> None:
    before = arm("warm start", set(range(32)), set(), 3, 12, N)
    after = arm("step 9", set(range(passes)), EVERY, 3, 4, N)
    # two tasks more, in the same order, hold three assertions more: too few to tell from luck
    assert verdict(before, after).work is work


def test_what_the_work_is_worth_is_said_by_passes_and_assertions_only_support() -> None:
    before = arm("warm start", set(range(10)), set(), 4, 12, N)
    found = verdict(before, arm("step 9", set(range(10)), EVERY, 1, 4, N))
    assert found.work is Work.NOT_DISTINGUISHABLE, "far fewer assertions hold, as many tasks pass"
    assert found.details[0].startswith("10 of 158 tasks passed, the warm start 10")
    assert "Of the assertions 25.1 % hold" in found.details[0]


def test_two_tests_that_each_just_miss_by_themselves_prove_nothing_together() -> None:
    """p = 0.031 twice would be two findings; corrected for two tests it is 0.06."""
    before = arm("warm start", set(), set(), 2, 12, N)
    found = verdict(before, arm("step 9", set(range(6)), set(range(6)), 2, 12, N))
    assert [round(t.p_value, 3) for t in found.tests] == [0.031, 0.031]
    assert [t.adjusted for t in found.tests] == holm([t.p_value for t in found.tests])
    assert [found.test(PASSES).sign, found.test(STOPPED).sign] == [0, 0]
    assert found.learning is Learning.NONE
    assert "corrected for the 2 tests" in found.details[-1]


@pytest.mark.parametrize("luck", [True, False])
def test_fewer_passes_are_the_first_thing_said_proven_or_not(luck: bool) -> None:
    before = arm("warm start", set(range(30)), set(), 2, 12, N)
    found = verdict(before, arm("step 9", set(range(28 if luck else 5)), EVERY, 2, 4, N))
    kept = 28 if luck else 5
    assert found.headline.startswith(
        f"Fewer tasks pass than at the start: {kept} of 158, 30 before (−"
    )
    assert "95 % interval −" in found.headline
    assert ("that can be luck" in found.headline) is luck
    assert found.learning is (Learning.DONE if luck else Learning.WORSE)


def test_a_night_that_learns_in_training_and_not_yet_on_the_held_out_tasks_is_under_way() -> None:
    """The first night of a slow box: 25 of the last 32 attempts stopped, and 1 of 48 held out."""
    before = arm("warm start", set(range(10)), set(), 2, 12, 48)
    after = arm("step 10", set(range(10)), {0}, 2, 12, 48)
    assert verdict(before, after).learning is Learning.NONE
    found = verdict(before, after, rising(10))
    assert (found.learning, found.habit) == (Learning.UNDER_WAY, Habit.UNCHANGED)
    assert found.headline.startswith(
        "Under way, not finished: in training, attempts that end by themselves went from 20.0 % to"
        " 90.0 %; on all held-out tasks it ends 1 of 48 tasks by itself, 0 before."
    )


def test_the_few_tasks_at_the_training_temperature_are_a_sign_too() -> None:
    before = arm("warm start", set(range(10)), set(), 2, 12, 48)
    after = arm("step 3", set(range(10)), {0}, 2, 12, 48)
    stops = paired_proportions([False] * 16, [True] * 12 + [False] * 4)
    found = verdict(
        before, after, Training(3, (), Sampled(1.0, 16, Ended(12, 4), Ended(0, 4), stops))
    )
    assert found.learning is Learning.UNDER_WAY
    assert "at the training temperature it ends 12 of the first 16 held-out tasks" in found.headline
    alone = verdict(before, after, Training(3, (), Sampled(1.0, 16, Ended(12, 4))))
    assert alone.learning is Learning.NONE, "nothing to compare it with"
    assert any("(T = 1) it ended 12 of the first 16" in line for line in alone.details)


def test_no_sign_of_learning_is_said_so() -> None:
    before = arm("warm start", set(range(10)), set(), 2, 12, 48)
    still = [step(i, "sha", stop_rate=0.1, turns=12.0) for i in range(1, 9)]
    found = verdict(before, before_again(before), Training(8, trends(still)))
    assert found.learning is Learning.NONE
    assert found.headline.startswith("No sign of learning in 8 steps: it ends 0 of 48 tasks")


def before_again(one: Arm) -> Arm:
    return Arm("step 8", one.outcomes)


def test_stopping_early_at_the_price_of_the_work_is_called_a_trade() -> None:
    before = arm("warm start", set(range(100)), set(), 3, 12, N)
    after = arm("step 3", set(range(60)), EVERY, 1, 2, N)
    found = verdict(before, after)
    assert found.habit is Habit.GONE
    assert found.work is Work.WORSE
    assert "traded one habit for another" in found.headline


def test_a_habit_that_is_only_reduced_was_not_traded_for_work() -> None:
    before = arm("warm start", set(range(100)), set(), 3, 12, N)
    found = verdict(before, arm("step 3", set(range(60)), set(range(20)), 1, 2, N))
    assert (found.habit, found.work) == (Habit.REDUCED, Work.WORSE)
    assert "The work got worse; it ends 20 of 158 tasks by itself, 0 before." in found.headline


def test_more_stops_that_are_not_nearly_all_leave_the_habit_weaker() -> None:
    before = arm("warm start", set(), set(), 2, 12, N)
    found = verdict(before, arm("step 9", set(), set(range(90)), 2, 8, N))
    assert found.habit is Habit.REDUCED
    assert found.learning is Learning.UNDER_WAY
    assert found.headline.startswith(
        "The habit is reduced, not gone: it ends 90 of 158 tasks by itself, 0 before."
    )


def test_a_few_more_stops_are_luck() -> None:
    before = arm("warm start", set(), {0, 1}, 2, 12, N)
    found = verdict(before, arm("step 9", set(), {0, 1, 2, 3, 4}, 2, 12, N))
    assert found.habit is Habit.UNCHANGED
    assert found.headline.startswith("No sign of learning: it ends 5 of 158")


def test_fewer_stops_are_said_plainly() -> None:
    before = arm("warm start", set(), set(range(80)), 2, 8, N)
    assert verdict(before, arm("step 9", set(), set(), 2, 12, N)).habit is Habit.WORSE


def test_a_policy_that_always_stopped_had_no_habit_to_break() -> None:
    before = arm("warm start", set(), EVERY, 2, 4, N)
    assert verdict(before, arm("step 9", set(), EVERY, 2, 4, N)).habit is Habit.NEVER_THERE


def test_turns_that_changed_on_no_task_are_not_luck() -> None:
    before = arm("warm start", set(range(10)), EVERY, 2, 3, N)
    said = " ".join(verdict(before, arm("step 9", set(range(20)), EVERY, 2, 3, N)).details)
    assert "It took 3.0 turns a task, the warm start 3.0 (0.0 on each task)." in said
    said = " ".join(verdict(before, arm("step 9", set(range(20)), EVERY, 2, 2, N)).details)
    assert "It took 2.0 turns a task, the warm start 3.0 (−1.0 on each task)." in said


def test_where_there_was_no_habit_the_first_line_is_about_the_work() -> None:
    before = arm("warm start", set(range(30)), EVERY, 2, 4, N)
    found = verdict(before, arm("step 9", set(range(60)), EVERY, 2, 4, N))
    assert found.learning is Learning.DONE
    assert found.headline == (
        "The work got better. It passes more tasks: 60 of 158, 30 before (+19.0 points, 95 %"
        " interval +12.7 to +25.2)."
    )


def test_more_stops_of_a_policy_that_had_hardly_a_habit_are_done_not_under_way() -> None:
    before = arm("warm start", set(range(30)), set(range(151)), 2, 5, N)
    found = verdict(before, arm("step 9", set(range(30)), EVERY, 2, 4, N))
    assert (found.habit, found.learning) == (Habit.NEVER_THERE, Learning.DONE)
    assert found.headline.startswith("More tasks end by themselves: it ends 158 of 158")


def test_one_stop_less_within_luck_does_not_undo_work_that_got_better() -> None:
    before = arm("warm start", set(range(30)), set(range(151)), 2, 5, N)
    found = verdict(before, arm("step 9", set(range(60)), set(range(150)), 2, 5, N))
    assert found.learning is Learning.DONE
    assert found.headline.startswith("The work got better.")


def test_more_work_with_a_habit_that_is_gone_by_luck_or_not_is_done() -> None:
    before = arm("warm start", set(range(10)), set(range(45)), 2, 5, 50)
    found = verdict(before, arm("step 9", set(range(30)), set(range(50)), 2, 4, 50))
    assert (found.habit, found.work) == (Habit.UNCHANGED, Work.BETTER)
    assert found.learning is Learning.DONE
    assert found.headline.startswith("The work got better.")


def test_where_a_task_has_one_assertion_its_reward_stands_beside_its_pass() -> None:
    def scored(name: str, passed: int) -> Arm:
        outcomes = arm(name, set(range(passed)), EVERY, 0, 4, N).outcomes.items()
        return Arm(
            name,
            {
                t: replace(o, assertions_passed=o.passed, assertions_total=1, reward=o.passed / 2)
                for t, o in outcomes
            },
        )

    said = verdict(scored("warm start", 30), scored("step 9", 60)).details[0]
    assert "assertions" not in said
    assert re.search(
        r"The mean reward is 0\.19, before 0\.09 \(\+0\.09 \[\+0\.0\d to \+0\.1\d\]", said
    )


def test_a_habit_that_goes_in_the_first_steps_is_not_called_luck_for_want_of_a_trend() -> None:
    stops = [0.1, 0.2, 0.4, 0.7, 0.9, 1.0, 1.0, 0.98] + [0.98, 0.97] * 16
    gone = [step(i, f"sha-{i}", stop_rate=s, turns=6.0) for i, s in enumerate(stops, start=1)]
    before = arm("warm start", set(), set(), 2, 12, N)
    found = verdict(before, arm("step 40", set(), EVERY, 2, 4, N), Training(40, trends(gone)))
    assert found.habit is Habit.GONE
    [said] = [note for note in found.notes if note.startswith("Over 40 steps")]
    assert "(no steady change is proven, p = " in said
    assert "luck" not in said


def test_what_rose_and_fell_again_is_no_sign_of_learning() -> None:
    stops = [i / 40 for i in range(36)] + [0.0] * 4
    fell = [step(i, f"sha-{i}", stop_rate=s, turns=6.0) for i, s in enumerate(stops, start=1)]
    before = arm("warm start", set(), set(), 2, 12, N)
    found = verdict(before, arm("step 40", set(), set(), 2, 12, N), Training(40, trends(fell)))
    assert found.test("trend of stops").adjusted < 0.05
    assert found.learning is Learning.NONE
    said = " ".join(found.notes)
    assert "(p < 0.001 of a rise, which the last steps undid)" in said


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        (30, "No sign of learning. It passes 30 of 158, 30 before."),
        (31, "No sign of learning. It passes 31 of 158, 30 before; that can be luck."),
    ],
)
def test_a_night_that_shows_nothing_claims_no_sameness_and_speaks_of_no_habit_it_had_not(
    passes: int, said: str
) -> None:
    before = arm("warm start", set(range(30)), EVERY, 2, 4, N)
    assert verdict(before, arm("step 9", set(range(passes)), EVERY, 2, 4, N)).headline == said


def test_tasks_that_neither_adapter_passes_are_told_apart_from_those_that_changed() -> None:
    before = arm("warm start", set(range(20)), set(), 2, 12, 60)
    found = verdict(before, arm("step 9", set(range(5, 23)), set(), 2, 4, 60))
    assert (
        "Of the 60 tasks 3 were won and 5 lost; 15 passed both times and 37 neither time."
        in found.notes
    )


def test_an_earlier_step_is_better_only_beyond_luck_of_all_that_are_looked_at() -> None:
    def since(first: int, lost: int) -> PairedRow:
        arms = [arm(f"step {first}", set(range(40)), EVERY, 2, 4, N)]
        arms.append(arm("step 9", set(range(40 - lost)), EVERY, 2, 4, N))
        return MatchedArms(arms, arms[0].name).paired("step 9")

    found = lost_since([since(2, 6), since(4, 0), since(6, 12)])
    assert [row.reference for row in found] == ["step 6"], "six lost have p = 0.031 by themselves"
    assert lost_since([since(2, 6)])[0].reference == "step 2"


def test_what_cannot_be_told_says_how_much_worse_it_may_still_be() -> None:
    before = arm("warm start", set(range(10)), set(), 2, 12, 24)
    after = arm("step 9", set(range(10)), set(range(24)), 2, 4, 24)
    found = verdict(before, after)
    assert found.work is Work.NOT_DISTINGUISHABLE
    assert "points worse" in found.details[-2]


def test_an_interval_that_its_test_does_not_bear_out_leaves_no_worse_that_is_zero() -> None:
    before = arm("warm start", set(range(30)), set(range(6)), 2, 12, N)
    found = verdict(before, arm("step 9", set(range(36)), set(range(3, 9)), 2, 12, N))
    assert found.work is Work.NOT_DISTINGUISHABLE
    assert "its interval lies above zero (+" in found.details[-2]
    assert "0.0 points worse" not in found.details[-2]


def test_nothing_is_said_about_tasks_it_ended_where_it_ended_none() -> None:
    before = arm("warm start", set(), set(), 2, 12, 24)
    found = verdict(before, arm("step 9", set(), set(), 2, 12, 24))
    assert "it ended," not in " ".join(found.details)


def test_what_cannot_be_told_says_how_many_tasks_would_tell() -> None:
    before = arm("warm start", set(range(20)), set(), 2, 12, 60)
    after = arm("step 9", set(range(5, 23)), set(range(60)), 2, 4, 60)
    found = verdict(before, after)
    assert (
        "With 8 of them differing, a change of 13.1 points is found in 80 of 100"
        in (found.details[-2])
    )
    assert "one of 3.3 takes about 987 tasks" in found.details[-2]


def test_where_no_change_would_be_found_that_is_said_and_how_many_tasks_one_takes() -> None:
    before = arm("warm start", set(range(34)), EVERY, 2, 3, 120)
    after = arm("step 12", set(range(4, 36)), EVERY, 2, 3, 120)
    found = verdict(before, after, rising(10))
    assert (
        "With 6 of them differing, even a change all in one direction is found in fewer than 80 of"
        " 100 such comparisons; one of 1.7 takes about "
    ) in found.details[-2]


def test_a_test_in_which_nothing_could_be_shown_corrects_no_other() -> None:
    """As where everything ends by itself before and after, in an environment without the habit."""
    before = arm("warm start", set(range(34)), EVERY, 2, 3, N)
    after = arm("step 12", set(range(1, 44)), EVERY, 2, 3, N)
    found = verdict(before, after)
    passed = found.test(PASSES)
    assert passed.adjusted == passed.p_value < 0.05
    assert found.work is Work.BETTER
    assert (
        "corrected for the 1 of the verdict's 2 tests in which enough differs"
        in (found.details[-1])
    )


def test_where_no_test_could_show_anything_none_is_said_to_be_corrected() -> None:
    before = arm("warm start", set(range(31)), set(), 2, 12, 48)
    found = verdict(before, arm("step 1", set(range(32)), set(), 2, 12, 48))
    assert found.details[-1].startswith("In none of the verdict's 2 tests does enough differ")


def test_the_smallest_change_that_is_found_knows_that_tests_are_corrected_together() -> None:
    before = arm("warm start", set(range(20)), set(range(6)), 2, 12, 60)
    after = arm("step 9", set(range(7, 25)), set(range(3, 9)), 2, 4, 60)  # stops show nothing
    change, alone = (detectable_change(60, 12 / 60, level) for level in (0.05 / 2, 0.05))
    assert change is not None
    assert alone is not None
    assert f"{100 * alone:.1f} points" != f"{100 * change:.1f} points"
    assert f"a change of {100 * change:.1f} points is found" in verdict(before, after).details[-2]
