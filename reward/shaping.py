"""Computes one reward from a grade and a number of turns.

Separate from all code that plays or trains, so that a stored trajectory can be scored again under
other settings, and so that a person can see before a night what a setting pays for (`explain`).
Nothing here reads a file or depends on an environment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import NonNegativeFloat, PositiveInt

from fieldkit.errors import BadInput
from fieldkit.eval.assertions import each_fact_once
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import StopReason, Turn
from fieldkit.registry import Registry
from fieldkit.settings import Choice, Follows, settings
from fieldkit.training.advantages import Scale, group_advantages, group_size_warning
from reward.schedule import check_points, value_at


@dataclass(frozen=True)
class RewardKind:
    """How an episode is paid, and which part of that each turn earns."""

    meaning: str
    """What it pays, in one line."""
    of_episode: Callable[[Grade, int, RewardSettings], float]
    """A function of (grade, turns, settings)."""
    of_turns: Callable[[Sequence[Turn], RewardSettings], tuple[float, ...]] = lambda turns, _: (
        (0.0,) * len(turns)
    )
    """What each turn earned by itself. By default only the end of the episode is paid."""


_RATE_EPS = 1e-6  # rounding of sums of shares such as 1/3; no task has a million assertions

REWARDS: Registry[RewardKind] = Registry("reward")
"""By the names that `reward.kind` may have."""


SCHEDULED = ("turn_penalty", "pass_bonus", "finish_bonus", "false_claim_penalty")
"""The keys whose values may change with the step."""


@settings("reward")
class RewardSettings:
    """Settings of an episode's reward."""

    kind: Annotated[str, Choice(REWARDS)] = "shaped"
    """The kind of reward."""
    turn_penalty: NonNegativeFloat = 0.2
    """λ: the penalty of an episode of `max_turns` turns, in units of the assertion rate."""
    pay_implied: bool = True
    """Also pay an assertion that another one about the same file implies (`file_exists` and one
    about its contents). false: each fact is paid once."""
    pass_bonus: NonNegativeFloat = 0.0
    """Added if every assertion holds at the end. The turn that completes the work is credited with
    it, and a turn that undoes the work loses it."""
    finish_bonus: NonNegativeFloat = 0.0
    """Added if every assertion holds at the end and the episode ended by itself; its last turn is
    credited with it. Each turn that begins with the work done and does not end it costs
    1/`max_turns` of it, where the environment reports progress. So finished work pays whole if the
    policy says so at once, and turns that still work cost nothing more."""
    false_claim_penalty: NonNegativeFloat = 0.0
    """The cost of saying "done" while an assertion does not hold; charged to that turn."""
    charge_cut_off: bool = False
    """Charge an episode that another limit than that of turns ended, such as its context, for
    `max_turns` turns. false: it is charged for the turns it took, like one that stopped by
    itself."""
    max_turns: Annotated[PositiveInt, Follows("rollout.max_turns")] = 12
    """Turns that count as a full episode; the rollout's limit."""
    schedule: dict[str, list[list[float]]] = field(default_factory=dict)
    """What the episodes of a step are paid by, where it changes with the step: the values of
    turn_penalty, a bonus or false_claim_penalty at some steps, such as `{ turn_penalty = [[1, 0.0],
    [20, 0.4]] }`; between them the value changes evenly. A preflight is paid as the step that comes
    next, and what is no training, such as an evaluation, by the keys themselves."""

    def __post_init__(self) -> None:
        for key, points in self.schedule.items():
            if key not in SCHEDULED:
                raise BadInput(f"reward.schedule: {key!r} is none of {', '.join(SCHEDULED)}")
            check_points(points, f"reward.schedule.{key}")

    def at_step(self, step: int) -> RewardSettings:
        """The settings that the episodes of this step, counted from 1, are paid by."""
        values: Any = {key: value_at(points, step) for key, points in self.schedule.items()}
        return replace(self, schedule={}, **values)


def paid_rate(grade: Grade, pay_implied: bool) -> float:
    """The share of paid assertions that hold, in [0, 1]."""
    return (grade if pay_implied else each_fact_once(grade)).rate


def _shaped(grade: Grade, n_turns: int, settings: RewardSettings) -> float:
    return paid_rate(grade, settings.pay_implied) - settings.turn_penalty * (
        n_turns / settings.max_turns
    )


def _shaped_turns(turns: Sequence[Turn], settings: RewardSettings) -> tuple[float, ...]:
    """The progress that the world reported (0 if none), minus the price of a turn."""
    price = settings.turn_penalty / settings.max_turns
    return tuple((turn.reward or 0.0) - price for turn in turns)


def _binary(grade: Grade, n_turns: int, settings: RewardSettings) -> float:
    return 1.0 if grade.passed else 0.0


REWARDS.register(
    "shaped",
    RewardKind(
        "share of assertions that hold, minus a penalty that grows with the turns used",
        _shaped,
        _shaped_turns,
    ),
)
REWARDS.register("binary", RewardKind("1 when every assertion holds, else 0", _binary))


CUT_OFF = (StopReason.CONTEXT_FULL, StopReason.TIME_LIMIT, StopReason.REPLY_CUT)
"""Limits that end an episode before its last allowed turn."""


def reward(
    grade: Grade,
    n_turns: int,
    settings: RewardSettings,
    stop: StopReason = StopReason.MAX_TURNS,
    n_overtime: int = 0,
) -> float:
    """The reward of one episode. For "shaped" it is rate − λ·turns/max_turns; for every kind the
    bonuses and the cost of a false claim are added. stop: how it ended. n_turns: all turns
    taken, including the one that says "done". n_overtime: as `overtime` counts them. Raises
    `ValueError` if n_turns is outside 0..max_turns (the episode was played under other limits), and
    for a reward that is not a finite number.
    """
    if not 0 <= n_turns <= settings.max_turns:
        raise ValueError(f"{n_turns} turns, but an episode has 0 to {settings.max_turns}")
    value = _of_kind(grade, _charged_turns(n_turns, settings, stop), settings)
    value += settings.pass_bonus * grade.passed + _of_end(grade, settings, stop)
    value -= _overtime_price(grade, settings, stop) * n_overtime
    if not math.isfinite(value):
        raise ValueError(f"the reward of {n_turns} turns is {value}, not a finite number")
    return value


def earned_by_turns(
    turns: Sequence[Turn], grade: Grade, settings: RewardSettings, stop: StopReason
) -> tuple[float, ...]:
    """What each turn of an episode earned by itself. This is the part that the kind of reward
    gives; plus, at the turn that completes the work, the bonus for a pass, which a turn that undoes
    the work loses; at a turn of overtime what it takes of the finish bonus; and at the last turn
    what ending there is worth, and the cost of turns that a cut-off episode is charged for without
    having taken them."""
    earned = list(REWARDS[settings.kind].of_turns(turns, settings))
    if not earned:
        return ()
    whole = _whole(turns, grade, settings)
    for i, (before, after) in enumerate(itertools.pairwise(whole)):
        earned[i] += settings.pass_bonus * (after - before)
    price = _overtime_price(grade, settings, stop)
    for i, late in enumerate(whole[:-2]):
        earned[i] -= price * late
    earned[-1] += _of_end(grade, settings, stop)
    charged = _charged_turns(len(turns), settings, stop)
    if charged != len(turns):
        earned[-1] += _of_kind(grade, charged, settings) - _of_kind(grade, len(turns), settings)
    return tuple(earned)


def overtime(turns: Sequence[Turn], grade: Grade, settings: RewardSettings) -> int:
    """How many turns began with every assertion holding and did not end the episode; 0 without
    reported progress."""
    return sum(_whole(turns, grade, settings)[:-2])


def _whole(turns: Sequence[Turn], grade: Grade, settings: RewardSettings) -> list[bool]:
    """Whether every assertion was seen to hold before each turn and at the end. Counts the progress
    of the turns backwards from the share that held at the end. Without reported progress nothing
    was seen."""
    if all(turn.reward is None for turn in turns):
        return [False] * (len(turns) + 1)
    rates = [paid_rate(grade, settings.pay_implied)]
    for turn in reversed(turns):
        rates.append(rates[-1] - (turn.reward or 0.0))
    return [r > 1 - _RATE_EPS for r in reversed(rates)]


def _of_kind(grade: Grade, n_turns: int, settings: RewardSettings) -> float:
    return REWARDS[settings.kind].of_episode(grade, n_turns, settings)


def _charged_turns(n_turns: int, settings: RewardSettings, stop: StopReason) -> int:
    return settings.max_turns if settings.charge_cut_off and stop in CUT_OFF else n_turns


def _of_end(grade: Grade, settings: RewardSettings, stop: StopReason) -> float:
    """What ending there is worth: the bonus for finished work, or the cost of a false claim."""
    if grade.passed:
        return _finish_bonus(grade, settings, stop)
    return -settings.false_claim_penalty if stop is StopReason.TASK_COMPLETE else 0.0


def _overtime_price(grade: Grade, settings: RewardSettings, stop: StopReason) -> float:
    """What a turn of overtime takes of the finish bonus, where that is paid."""
    return _finish_bonus(grade, settings, stop) / settings.max_turns


def _finish_bonus(grade: Grade, settings: RewardSettings, stop: StopReason) -> float:
    return settings.finish_bonus if grade.passed and stop.by_itself else 0.0


@dataclass(frozen=True)
class ExplainRow:
    """One line of `grpo reward explain`: a case, its reward, and a note."""

    case: str
    reward: float | None
    """None if the row is about a whole group and `note` holds the numbers."""
    note: str


def explain(
    settings: RewardSettings, group_size: int = 4, scale: Scale = "std"
) -> tuple[ExplainRow, ...]:
    """Corner cases that show before a night what these settings pay for.

    scale: how a group's rewards become advantages.
    """
    return (
        *_episode_rows(settings),
        _fact_row(settings),
        *_price_rows(settings),
        *_group_rows(settings, group_size, scale),
    )


def _grade(passed: int, total: int) -> Grade:
    return Grade(
        tuple(AssertionResult("file_exists", f"file{i}", i < passed, "") for i in range(total))
    )


def _episode_rows(settings: RewardSettings) -> list[ExplainRow]:
    last = settings.max_turns
    short = min(4, last)

    def earn(passed: int, total: int, turns: int, stop: StopReason = StopReason.MAX_TURNS) -> float:
        return reward(_grade(passed, total), turns, settings, stop)

    done = StopReason.TASK_COMPLETE
    quick, slow = earn(1, 1, short, done), earn(1, 1, last)
    almost, whole = earn(4, 5, short), earn(5, 5, short)
    quit_early, worked = earn(1, 4, 1, done), earn(2, 5, last)
    nothing, useless = earn(0, 1, 1, done), earn(0, 1, last)
    unsaid, cut_off = earn(1, 4, short), earn(1, 4, 1, StopReason.CONTEXT_FULL)
    claimed = earn(1, 4, short, done)
    return [
        ExplainRow(f"passes in {short} turns and says so", quick, "the behaviour that is wanted"),
        ExplainRow(
            f"passes in {last} turns", slow, f"dragging it out costs {_number(quick - slow)}"
        ),
        ExplainRow("stops at once with a quarter of the assertions", quit_early, ""),
        ExplainRow(
            f"40 % of the assertions in {last} turns", worked, _quitting_note(quit_early, worked)
        ),
        ExplainRow("stops at once with nothing done", nothing, ""),
        ExplainRow(
            f"four of five assertions in {short} turns, without a claim",
            almost,
            f"the fifth is worth {_number(whole - almost)}, {_number(settings.pass_bonus)} of it"
            " the bonus for a pass",
        ),
        ExplainRow(
            f"says that it is done with a quarter in {short} turns",
            claimed,
            f"the false claim costs {_number(unsaid - claimed)}",
        ),
        ExplainRow(
            "a quarter in one turn, when the context was full",
            cut_off,
            "charged like an early stop"
            if math.isclose(cut_off, earn(1, 4, 1))
            else f"charged like {last} turns (charge_cut_off)",
        ),
        ExplainRow(
            f"nothing done in {last} turns",
            useless,
            "equal: a task that never succeeds teaches nothing"
            if math.isclose(nothing, useless)
            else "a hopeless task still teaches to stop sooner",
        ),
        ExplainRow(
            "no number (NaN)",
            None,
            "an error, never a reward: a broken grader is no bad rollout",
        ),
    ]


def _fact_row(settings: RewardSettings) -> ExplainRow:
    """A file that exists and one with right contents: two assertions about one fact."""
    made = Grade(
        (
            AssertionResult("file_exists", "a.txt", True),
            AssertionResult("file_contents_contain", "a.txt", False, "does not contain 'x'"),
        )
    )
    turns = min(4, settings.max_turns)
    twice, once = (
        reward(made, turns, replace(settings, pay_implied=paid)) for paid in (True, False)
    )
    note = f"{_number(twice)} where the file's existence is paid beside its contents"
    return ExplainRow(
        f"creates the file with wrong contents in {turns} turns",
        reward(made, turns, settings),
        f"{note}, {_number(once)} where each fact is paid once (pay_implied = false)",
    )


def _quitting_note(quit_early: float, worked: float) -> str:
    if math.isclose(quit_early, worked):
        return "pays the same as the row above, which did less"
    if quit_early > worked:
        return "WARNING: stopping at once (the row above) pays more than this work"
    return "pays more than stopping at once (the row above)"


def _price_rows(settings: RewardSettings) -> list[ExplainRow]:
    """What one turn costs, in the currency of assertions."""
    price = reward(_grade(0, 1), 0, settings) - reward(_grade(0, 1), 1, settings)
    overtime_price = _overtime_price(_grade(1, 1), settings, StopReason.TASK_COMPLETE)
    worth = 1 / 5  # the documents' tasks have 780 assertions in 158 tasks: about five each
    note = "turns are free: nothing here teaches to stop"
    if price:
        note = f"one assertion of five is worth the price of {worth / price:.0f} turns"
    elif overtime_price:
        note = "free while the work is undone"
    rows = [ExplainRow("one more turn", -price if price else 0.0, note)]
    if overtime_price:
        rows.append(
            ExplainRow(
                "one more turn after the work is done, before saying so",
                -price - overtime_price,
                f"{_number(overtime_price)} of it is taken from the finish bonus, where the"
                " environment reports progress",
            )
        )
    return rows


def _group_rows(settings: RewardSettings, group_size: int, scale: Scale) -> list[ExplainRow]:
    """How a group's spread becomes advantages, and when it is lost."""
    spread = {
        "std": "the spread is erased: a hair or a mile apart, the pair gives ±0.71 by episode",
        "mean": "the spread is kept: half of what lies between them, up and down, by episode",
    }[scale]
    full = _grade(1, 1)
    last = settings.max_turns
    far = (reward(full, 1, settings), reward(_grade(0, 1), last, settings))
    near = (reward(full, max(1, last - 1), settings), reward(full, last, settings))
    rows = [
        ExplainRow("K = 1", None, "an error: one rollout has nothing to be compared with"),
        _group_row("K = 2, far apart", far, scale),
        _group_row("K = 2, one turn apart", near, scale),
        ExplainRow("K = 2, any two that differ", None, spread),
        _group_row("K = 4, two good, two bad", (*near, *far[1:] * 2), scale),
        _group_row("K = 4, all the same", near[:1] * 4, scale),
    ]
    warning = group_size_warning(group_size, scale)
    if warning:
        rows.append(ExplainRow(f"your K = {group_size}", None, f"WARNING: {warning}"))
    return rows


def _group_row(case: str, rewards: tuple[float, ...], scale: Scale) -> ExplainRow:
    advantages = group_advantages(rewards, scale)
    return ExplainRow(
        case,
        None,
        f"rewards {', '.join(map(_number, rewards))}"
        f" → advantages {', '.join(f'{a:+.2f}' if a else '0' for a in advantages)}",
    )


def _number(x: float) -> str:
    return f"{x:.3f}"
