"""The verdict: is the habit of never stopping gone, and did the work get better or worse?

It uses only tests and intervals. A change is claimed only if the exact test and the interval agree;
anything else is "not distinguishable", with how much worse or better it may still be.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fieldkit.eval.matched import ArmRow, PairedRow
from fieldkit.eval.power import MOST_TASKS, POWER, detectable_change, tasks_needed
from fieldkit.eval.stats import Estimate, PairedProportions
from scripts.words.quantities import p_value, percent, points, span, turns

SIGNIFICANT = 0.05
"""A two-sided p-value below this is significant, which matches 95 % intervals."""

STOPS_BY_ITSELF = 0.95
"""A policy that ends at least this share of its tasks by itself has no habit of going on."""


class Habit(StrEnum):
    """The change in the habit of never stopping by itself."""

    GONE = "GONE"
    REDUCED = "REDUCED"
    UNCHANGED = "UNCHANGED"
    WORSE = "WORSE"
    NEVER_THERE = "NEVER_THERE"


class Work(StrEnum):
    """The change in the work: tasks that pass, and assertions that hold."""

    BETTER = "BETTER"
    WORSE = "WORSE"
    MIXED = "MIXED"
    NOT_DISTINGUISHABLE = "NOT_DISTINGUISHABLE"


@dataclass(frozen=True)
class Verdict:
    """The verdict as enums and as text: a headline, then the numbers behind it."""

    habit: Habit
    work: Work
    headline: str
    details: tuple[str, ...]


def judge(before: ArmRow, after: ArmRow, paired: PairedRow) -> Verdict:
    """Judge `after` against `before`. paired: after − before over the same tasks."""
    habit = _habit(before, after, paired)
    work = _work(paired)
    return Verdict(
        habit=habit,
        work=work,
        headline=_headline(habit, work),
        details=(
            _stops_sentence(before, after, paired),
            _turns_sentence(before, after, paired),
            _work_sentence(before, after, paired),
            *_room_sentence(work, paired),
        ),
    )


def proven(change: PairedProportions) -> int:
    """The sign of a change if the exact test and the interval agree, else 0."""
    return change.difference.sign if change.test.p_value < SIGNIFICANT else 0


def _habit(before: ArmRow, after: ArmRow, paired: PairedRow) -> Habit:
    change = proven(paired.stopped)
    if change < 0:
        return Habit.WORSE
    if before.stop_rate.value >= STOPS_BY_ITSELF:
        return Habit.NEVER_THERE
    if change == 0:
        return Habit.UNCHANGED
    return Habit.GONE if after.stop_rate.value >= STOPS_BY_ITSELF else Habit.REDUCED


def _work(paired: PairedRow) -> Work:
    signs = {proven(paired.passed), paired.assertion_rate.sign} - {0}
    if not signs:
        return Work.NOT_DISTINGUISHABLE
    if len(signs) == 2:
        return Work.MIXED
    return Work.BETTER if signs == {1} else Work.WORSE


_HABIT_WORDS = {
    Habit.GONE: "The habit is gone: it stops by itself",
    Habit.REDUCED: "The habit is weaker, not gone: it stops by itself more often",
    Habit.UNCHANGED: "The habit did not move",
    Habit.WORSE: "The habit got worse: it stops by itself less often",
    Habit.NEVER_THERE: "There was no habit to break: it stopped by itself before",
}

_WORK_WORDS = {
    Work.BETTER: "and the work got better",
    Work.WORSE: "but the work got worse",
    Work.MIXED: "and the work changed both ways: look at the table",
    Work.NOT_DISTINGUISHABLE: "and the work is neither better nor worse as far as these tasks tell",
}


def _headline(habit: Habit, work: Work) -> str:
    if habit in (Habit.GONE, Habit.REDUCED) and work is Work.WORSE:
        return "It traded one habit for another: it stops by itself, but leaves more work undone."
    return f"{_HABIT_WORDS[habit]}, {_WORK_WORDS[work]}."


def _stops_sentence(before: ArmRow, after: ArmRow, paired: PairedRow) -> str:
    ended = (
        f"{after.name.capitalize()} ended {after.stopped} of {after.n_tasks} tasks by itself,"
        f" the {before.name} {before.stopped} ({_change(paired.stopped)})."
    )
    if not after.stopped:
        return ended
    return f"{ended} Of the {after.stopped} it ended, {after.stopped_and_passed} were done."


def _turns_sentence(before: ArmRow, after: ArmRow, paired: PairedRow) -> str:
    return (
        f"It took {turns(after.mean_turns.value)} turns a task, the {before.name}"
        f" {turns(before.mean_turns.value)}"
        f" ({_with_interval(paired.turns, as_points=False)}{_luck(paired.turns.sign)})."
    )


def _work_sentence(before: ArmRow, after: ArmRow, paired: PairedRow) -> str:
    return (
        f"{after.passed} of {after.n_tasks} tasks passed, the {before.name} {before.passed}"
        f" ({_change(paired.passed)}); {percent(after.assertion_rate.value)} of the assertions"
        f" hold, the {before.name} {percent(before.assertion_rate.value)}"
        f" ({_with_interval(paired.assertion_rate)}{_luck(paired.assertion_rate.sign)})."
    )


def _room_sentence(work: Work, paired: PairedRow) -> tuple[str, ...]:
    left_open = room(paired)
    if work is not Work.NOT_DISTINGUISHABLE or not left_open:
        return ()
    return (f"These {paired.n_tasks} tasks cannot tell more: {left_open}.{_sight(paired)}",)


def _sight(paired: PairedRow) -> str:
    """The change that these tasks can detect, and how many tasks would detect the change seen."""
    test = paired.passed.test
    differing = test.first_only + test.second_only
    smallest = detectable_change(test.n, differing / test.n) if differing else None
    if smallest is None:
        return ""
    told = (
        f" With {differing} of them differing, a change of {100 * smallest:.1f} points is found in"
        f" {100 * POWER:.0f} of 100 such comparisons"
    )
    seen = abs(paired.passed.difference.value)
    if test.first_only == test.second_only:
        return f"{told}."
    needed = tasks_needed(test.second_only / test.n, test.first_only / test.n)
    tasks = f"about {needed:,}" if needed else f"more than {MOST_TASKS:,}"
    return f"{told}; one of {100 * seen:.1f} takes {tasks} tasks."


def room(paired: PairedRow) -> str:
    """How much worse or better the arm may still be; empty without an interval."""
    interval = paired.passed.difference.interval
    if interval is None:
        return ""
    worse, better = max(0.0, -interval.low), max(0.0, interval.high)
    return (
        f"in tasks passed it may be up to {100 * worse:.1f} points worse or"
        f" {100 * better:.1f} better"
    )


def _change(change: PairedProportions) -> str:
    found = _with_interval(change.difference)
    return f"{found}, p {p_value(change.test.p_value, equals=True)}{_luck(proven(change))}"


def _with_interval(estimate: Estimate, as_points: bool = True) -> str:
    value = points(estimate.value) if as_points else turns(estimate.value, sign=True)
    unit = " points" if as_points else ""
    if estimate.interval is None:
        return f"{value}{unit}"
    return f"{value}{unit}, 95 % interval {span(estimate.interval, as_points)}"


def _luck(sign: int) -> str:
    return "" if sign else "; that can be luck"
