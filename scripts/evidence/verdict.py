"""The verdict: did the night do its work, is it under way, or is there no sign of learning?

It speaks of the tasks that pass first, then of the habit of never stopping by itself; assertions
only support. The tests that it makes together are corrected (Holm), and a change on held-out tasks
is claimed only if the corrected test and the interval agree. Anything else is "not
distinguishable", with how much worse or better it may still be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fieldkit.eval.matched import ArmRow, PairedRow, holm_adjusted
from fieldkit.eval.power import MOST_TASKS, POWER, detectable_change, tasks_needed
from fieldkit.eval.stats import FEWEST_DIFFERING, Estimate, PairedProportions, PairedTest, holm
from scripts.evidence.learning import Training, Trend
from scripts.evidence.milestones import window
from scripts.evidence.step_figures import REWARD, STOPS
from scripts.words.quantities import (
    counted,
    estimate,
    is_alike,
    p_value,
    percent,
    plain,
    span,
    turns,
    with_interval,
)

SIGNIFICANT = 0.05
"""A two-sided p-value below this is significant, which matches 95 % intervals."""

STOPS_BY_ITSELF = 0.95
"""A policy that ends at least this share of its tasks by itself has no habit of going on."""


class Learning(StrEnum):
    """What came of the night."""

    NONE = "NONE"
    """No sign of learning."""
    UNDER_WAY = "UNDER_WAY"
    """It learns, and is not finished: more steps are worth their time."""
    DONE = "DONE"
    """It has no habit now, or had none, and fewer tasks ran on or more of them pass than before,
    beyond luck; nothing is proven worse."""
    WORSE = "WORSE"
    """Fewer tasks pass, or it stops less often, beyond luck."""


class Habit(StrEnum):
    """The change in the habit of never stopping by itself, on the held-out tasks."""

    GONE = "GONE"
    REDUCED = "REDUCED"
    UNCHANGED = "UNCHANGED"
    WORSE = "WORSE"
    NEVER_THERE = "NEVER_THERE"


class Work(StrEnum):
    """The change in the work: the held-out tasks that pass."""

    BETTER = "BETTER"
    WORSE = "WORSE"
    NOT_DISTINGUISHABLE = "NOT_DISTINGUISHABLE"


@dataclass(frozen=True)
class FamilyTest:
    """One of the tests that the verdict makes together.

    adjusted: its p-value by Holm over those that count. sign: of a change that is proven, else 0.
    counts: enough differs that it could be significant; another one keeps its own p-value.
    """

    what: str
    p_value: float
    adjusted: float
    sign: int
    counts: bool = True


PASSES, STOPPED, SAMPLED = "tasks passed", "ended by itself", "ended by itself, sampled"
STOPS_TREND, REWARD_TREND = "trend of stops", "trend of reward"
"""The names of the tests; the last three are made only if the night has their data."""


@dataclass(frozen=True)
class Verdict:
    """The verdict as enums and as text: a headline, then the numbers behind it.

    figures: passes, stops and turns in a sentence each; the page shows them as cards. notes: what
    else is known.
    """

    learning: Learning
    habit: Habit
    work: Work
    headline: str
    figures: tuple[str, ...]
    notes: tuple[str, ...]
    tests: tuple[FamilyTest, ...]

    @property
    def details(self) -> tuple[str, ...]:
        """All sentences below the headline."""
        return self.figures + self.notes

    def test(self, what: str) -> FamilyTest:
        """The test of this name, which was made."""
        return next(t for t in self.tests if t.what == what)


def judge(
    before: ArmRow, after: ArmRow, paired: PairedRow, training: Training | None = None
) -> Verdict:
    """Judge `after` against `before`. paired: after − before over the same tasks.

    training: what is known at the training temperature.
    """
    training = training or Training()
    tests = _tests(paired, training)
    found = {t.what: t for t in tests}
    habit = _habit(before, after, found[STOPPED].sign)
    work = (Work.NOT_DISTINGUISHABLE, Work.BETTER, Work.WORSE)[found[PASSES].sign]
    learning = _learning(habit, work, tests, after.stop_rate.value >= STOPS_BY_ITSELF)
    case = _Case(before, after, paired, training, found)
    return Verdict(
        learning=learning,
        habit=habit,
        work=work,
        headline=case.headline(learning, habit, work),
        figures=case.figures(),
        notes=case.notes(work),
        tests=tests,
    )


def lost_since(late: Sequence[PairedRow]) -> tuple[PairedRow, ...]:
    """The earlier arms that pass more tasks than the newest, beyond luck (Holm over all of them).

    late: the newest arm against each earlier one.
    """
    both = zip(late, holm_adjusted(late), strict=True)
    return tuple(row for row, adjusted in both if adjusted.passed.sign < 0)


def _tests(paired: PairedRow, training: Training) -> tuple[FamilyTest, ...]:
    """The family: every test that a claim of the verdict can rest on. One that no outcome could
    make significant, given how few tasks differ at all, corrects no other (Tarone 1990)."""
    pairs = {PASSES: paired.passed, STOPPED: paired.stopped}
    if training.sampled is not None and training.sampled.stopped is not None:
        pairs[SAMPLED] = training.sampled.stopped
    moved = {_TREND_NAMES[t.figure]: t for t in training.trends}
    raw = {name: p.test.p_value for name, p in pairs.items()}
    raw |= {name: t.p_value for name, t in moved.items()}
    able = [name for name, p in pairs.items() if _can_show(p.test)]
    able += [name for name, t in moved.items() if t.tau or t.first != t.last]
    corrected = dict(zip(able, holm([raw[name] for name in able]), strict=True))
    adjusted = {name: (p, corrected.get(name, p)) for name, p in raw.items()}
    signs = {name: pair.with_p(adjusted[name][1]).sign for name, pair in pairs.items()}
    for name, trend in moved.items():
        signs[name] = trend.sign if adjusted[name][1] < SIGNIFICANT else 0
    return tuple(
        FamilyTest(name, *p, signs[name], counts=name in able) for name, p in adjusted.items()
    )


def _can_show(test: PairedTest) -> bool:
    """Whether the exact test would be significant if all tasks that differ did so in one way."""
    return test.first_only + test.second_only >= FEWEST_DIFFERING


_TREND_NAMES = {STOPS.key: STOPS_TREND, REWARD.key: REWARD_TREND}


def _habit(before: ArmRow, after: ArmRow, change: int) -> Habit:
    if change < 0:
        return Habit.WORSE
    if before.stop_rate.value >= STOPS_BY_ITSELF:
        return Habit.NEVER_THERE
    if change == 0:
        return Habit.UNCHANGED
    return Habit.GONE if after.stop_rate.value >= STOPS_BY_ITSELF else Habit.REDUCED


def _learning(
    habit: Habit, work: Work, tests: tuple[FamilyTest, ...], no_habit_now: bool
) -> Learning:
    if work is Work.WORSE or habit is Habit.WORSE:
        return Learning.WORSE
    better = {t.what for t in tests if t.sign > 0}
    if (no_habit_now or habit is Habit.NEVER_THERE) and better & {PASSES, STOPPED}:
        return Learning.DONE
    return Learning.UNDER_WAY if better else Learning.NONE


@dataclass(frozen=True)
class _Case:
    """Everything that the verdict's sentences speak of."""

    before: ArmRow
    after: ArmRow
    paired: PairedRow
    training: Training
    tests: Mapping[str, FamilyTest]

    # --- the headline -----------------------------------------------------------------------------

    def headline(self, learning: Learning, habit: Habit, work: Work) -> str:
        """The state of the night and the passes; fewer passes than before come first."""
        if learning is Learning.WORSE:
            state = self._worse(habit, work)
        elif habit is Habit.GONE:
            state = f"Done. The habit is gone: {self._ends}."
        elif habit is Habit.REDUCED:
            state = f"The habit is reduced, not gone: {self._ends}."
        elif learning is Learning.DONE and work is Work.BETTER:
            state = "The work got better."
        elif learning is Learning.DONE:
            state = f"More tasks end by themselves: {self._ends}."
        elif learning is Learning.UNDER_WAY:
            state = f"Under way, not finished: {self._under_way(habit)}."
        else:
            after = f" in {counted(n, 'step')}" if (n := self.training.n_steps) else ""
            ends = "" if habit is Habit.NEVER_THERE else f": {self._ends}"
            state = f"No sign of learning{after}{ends}."
        fewer = self.after.passed < self.before.passed
        return f"{self._fewer()} {state}" if fewer else f"{state} {self._passes(work)}"

    @property
    def _ends(self) -> str:
        a, b = self.after, self.before
        return f"it ends {a.stopped} of {a.n_tasks} tasks by itself, {b.stopped} before"

    def _under_way(self, habit: Habit) -> str:
        """The strongest sign of learning, and the habit on the held-out tasks if there was one."""
        learns = [words for name, words in self._signs() if self.tests[name].sign > 0][:1]
        if not learns:
            return self._ends
        held_out = [] if habit is Habit.NEVER_THERE else [f"on all held-out tasks {self._ends}"]
        return "; ".join(learns + held_out)

    def _signs(self) -> Iterator[tuple[str, str]]:
        """The tests at the training temperature, and what each shows if it went up."""
        s = self.training.sampled
        if s is not None and s.before is not None:
            yield (
                SAMPLED,
                f"at the training temperature it ends {s.after.stopped} of the first {s.n_tasks}"
                f" held-out tasks by itself, {s.before.stopped} before",
            )
        for t in self.training.trends:
            yield _TREND_NAMES[t.figure], f"in training, {t.words}"

    def _worse(self, habit: Habit, work: Work) -> str:
        if work is not Work.WORSE:
            return f"It ends fewer tasks by itself: {self._ends}."
        if habit is Habit.GONE:
            return (
                "It traded one habit for another: it ends its tasks, but leaves more work undone."
            )
        return f"The work got worse; {self._ends}."

    def _fewer(self) -> str:
        return (
            f"Fewer tasks pass than at the start: {self._counts}"
            f" ({with_interval(self.paired.passed.difference)}{_luck(self.tests[PASSES].sign)})."
        )

    def _passes(self, work: Work) -> str:
        if work is Work.BETTER:
            change = with_interval(self.paired.passed.difference)
            return f"It passes more tasks: {self._counts} ({change})."
        same = self.after.passed == self.before.passed
        return f"It passes {self._counts}{'' if same else _luck(0)}."

    @property
    def _counts(self) -> str:
        a, b = self.after, self.before
        return f"{a.passed} of {a.n_tasks}, {b.passed} before"

    # --- the numbers behind it --------------------------------------------------------------------

    def figures(self) -> tuple[str, ...]:
        """One sentence or two for each figure, the work first."""
        return (self._work_sentence(), self._stops_sentence(), self._turns_sentence())

    def notes(self, work: Work) -> tuple[str, ...]:
        """Which tasks changed, what training says, what stays open, and the tests."""
        s = self.training.sampled
        trends = ", Kendall's over the steps" if self.training.trends else ""
        return (
            _pairs_sentence(self.paired.passed.test),
            *([s.words(self.before.name, self._p(SAMPLED))] if s else []),
            *self._trend_sentence(),
            *_room_sentence(work, self.paired, _level(self.tests)),
            f"{self._family}: McNemar's exact test over the tasks{trends}.",
        )

    @property
    def _family(self) -> str:
        n, able = len(self.tests), sum(t.counts for t in self.tests.values())
        if not able:
            return f"In none of the verdict's {n} tests does enough differ to show anything"
        of = f"{n} tests that the verdict makes"
        if able < n:
            of = f"{able} of the verdict's {n} tests in which enough differs to show anything"
        return f"Each p is corrected for the {of} (Holm)"

    def _work_sentence(self) -> str:
        a, b, rate = self.after, self.before, self.paired.assertion_rate
        passed = (
            f"{a.passed} of {a.n_tasks} tasks passed, the {b.name} {b.passed}"
            f" ({self._change(PASSES, self.paired.passed)})."
        )
        if not a.has_parts:
            return passed + self._reward_sentence()
        return (
            f"{passed} Of the assertions {percent(a.assertion_rate.value)} hold, the {b.name}"
            f" {percent(b.assertion_rate.value)} ({_judged(rate)})."
        )

    def _reward_sentence(self) -> str:
        """Where a task has one assertion, its reward says what its pass does not."""
        a, b, change = self.after.mean_reward, self.before.mean_reward, self.paired.reward
        if a is None or b is None or change is None:
            return ""
        moved = estimate(change, as_points=False, digits=2)
        return f" The mean reward is {plain(a, 2)}, before {plain(b, 2)} ({moved})."

    def _stops_sentence(self) -> str:
        a, b = self.after, self.before
        done = f" Of those {a.stopped_and_passed} of {a.stopped} were done."
        return (
            f"{a.name.capitalize()} ended {a.stopped} of {a.n_tasks} tasks by itself,"
            f" the {b.name} {b.stopped} ({self._change(STOPPED, self.paired.stopped)})."
            f"{done if a.stopped else ''}"
        )

    def _turns_sentence(self) -> str:
        change = self.paired.turns
        return (
            f"It took {turns(self.after.mean_turns.value)} turns a task, the {self.before.name}"
            f" {turns(self.before.mean_turns.value)}"
            f" ({_judged(change, as_points=False)})."
        )

    def _trend_sentence(self) -> tuple[str, ...]:
        moved = [t for t in self.training.trends if t.first != t.last]
        if not moved:
            return ()
        told = [f"{t.words} ({self._trend(t)})" for t in moved]
        n = moved[0].n_steps
        ends = f"means of the first {window(n)} and the last {window(n)}, which play other tasks"
        return (f"Over {n} steps of training ({ends}), {' and '.join(told)}.",)

    def _trend(self, t: Trend) -> str:
        test = self.tests[_TREND_NAMES[t.figure]]
        if test.adjusted >= SIGNIFICANT:  # as for a habit that goes in the first steps
            return f"no steady change is proven, p {p_value(test.adjusted, equals=True)}"
        if t.sign:
            return self._p(test.what)
        way = "rise" if t.tau > 0 else "fall"
        return f"p {p_value(test.adjusted, equals=True)} of a {way}, which the last steps undid"

    def _p(self, name: str) -> str:
        test = self.tests.get(name)
        return f"p {p_value(test.adjusted, equals=True)}{_luck(test.sign)}" if test else ""

    def _change(self, name: str, change: PairedProportions) -> str:
        return f"{with_interval(change.difference)}, {self._p(name)}"


def _pairs_sentence(test: PairedTest) -> str:
    return (
        f"Of the {counted(test.n, 'task')} {test.second_only} were won and {test.first_only} lost;"
        f" {test.both} passed both times and {test.neither} neither time."
    )


def _level(tests: Mapping[str, FamilyTest]) -> float:
    """What the p of the tasks passed, by itself, has to stay below: Holm's level for it, given the
    tests that show more."""
    passed = tests[PASSES].p_value
    shown = sum(t.adjusted < SIGNIFICANT and t.p_value < passed for t in tests.values())
    return SIGNIFICANT / max(1, sum(t.counts for t in tests.values()) - shown)


def _room_sentence(work: Work, paired: PairedRow, level: float) -> tuple[str, ...]:
    left_open = room(paired)
    if work is not Work.NOT_DISTINGUISHABLE or not left_open:
        return ()
    n = counted(paired.n_tasks, "task")
    return (f"With {n} no more can be told: {left_open}.{_sight(paired, level)}",)


def _sight(paired: PairedRow, level: float) -> str:
    """The change that these tasks can detect at this level, and how many tasks would detect the one
    that was seen."""
    test = paired.passed.test
    differing = test.first_only + test.second_only
    if not differing:
        return ""
    smallest = detectable_change(test.n, differing / test.n, level)
    often = f"{100 * POWER:.0f} of 100 such comparisons"
    told = f" With {differing} of them differing, "
    if smallest is None:
        told += f"even a change all in one direction is found in fewer than {often}"
    else:
        told += f"a change of {100 * smallest:.1f} points is found in {often}"
    seen = abs(paired.passed.difference.value)
    if test.first_only == test.second_only:
        return f"{told}."
    needed = tasks_needed(test.second_only / test.n, test.first_only / test.n, level)
    tasks = f"about {needed:,}" if needed else f"more than {MOST_TASKS:,}"
    return f"{told}; one of {100 * seen:.1f} takes {tasks} tasks."


def room(paired: PairedRow) -> str:
    """How much worse or better an arm may still be whose change is not proven; empty without an
    interval."""
    interval = paired.passed.difference.interval
    if interval is None:
        return ""
    if interval.excludes():
        side = "above" if interval.low > 0 else "below"
        return (
            f"in tasks passed its interval lies {side} zero ({span(interval)} points), which its"
            " test does not bear out"
        )
    worse, better = 100 * abs(interval.low), 100 * interval.high
    return f"in tasks passed it may be up to {worse:.1f} points worse or {better:.1f} better"


def _judged(change: Estimate, as_points: bool = True) -> str:
    """A change that its interval alone judges. Where nothing moved, nothing can be luck."""
    return with_interval(change, as_points) + ("" if is_alike(change) else _luck(change.sign))


def _luck(sign: int) -> str:
    return "" if sign else "; that can be luck"
