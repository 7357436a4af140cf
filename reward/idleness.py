"""What is had for nothing: stops with nothing done, and assertions that hold without any work.

A reward that charges for turns, or that pays for assertions such as `file_unchanged`, can rise
while less is done. These counts show it. They need attempts that are graded by assertions; attempts
that an environment pays by parts are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fieldkit.eval.resampling import ratio_difference
from fieldkit.eval.stats import Estimate
from fieldkit.records import AtStop, Trajectory

_ROUNDING = 1e-6  # of sums of shares such as 1/3; no task has a million assertions


def progress(trajectory: Trajectory) -> float | None:
    """The change of the share of paid assertions from the start to the end, as the world reported
    it turn by turn; None where it reports none, or pays by parts."""
    t = trajectory
    if t.grade.rewards or any(turn.action.command and turn.reward is None for turn in t.turns):
        return None
    return math.fsum(turn.reward or 0.0 for turn in t.turns)


def at_stop(trajectories: Sequence[Trajectory]) -> AtStop | None:
    """The attempts that no limit ended, and what they had done; None where no attempt's progress
    is known."""
    known = [(t, gain) for t in trajectories if (gain := progress(t)) is not None]
    if not known:
        return None
    stops = [(t, gain) for t, gain in known if t.stop_reason.by_itself]
    return AtStop(
        n=len(stops),
        passed=sum(t.grade.passed for t, _ in stops),
        idle=sum(gain < _ROUNDING and not t.grade.passed for t, gain in stops),
    )


@dataclass(frozen=True)
class ByNeed:
    """Assertions by whether doing nothing meets them, and how many of each hold in an arm.

    A pair has first what concerns those that doing nothing meets, then those that need work.
    """

    totals: tuple[int, int]
    held: Mapping[str, tuple[int, int]]
    """By arm."""
    gained: tuple[Estimate, Estimate] | None
    """The newest arm's share minus the reference's, with intervals over tasks; None if there is no
    newer arm."""


def by_need(
    idle: Mapping[str, Trajectory],
    arms: Mapping[str, Mapping[str, Trajectory]],
    reference: str = "",
    newest: str | None = None,
) -> ByNeed | None:
    """Tell the assertions apart by what holds after doing nothing; None if there are none.

    idle: by task, the attempt that did nothing. arms: each arm's attempts by task, with the same
    assertions in the same order.
    """
    met = {
        task_id: [result.passed for result in t.grade.results]
        for task_id, t in idle.items()
        if not t.grade.rewards
    }
    if not any(met.values()):
        return None
    totals = [_apart(before, [True] * len(before)) for before in met.values()]
    held = {
        arm: [
            _apart(before, [result.passed for result in attempts[task_id].grade.results])
            for task_id, before in met.items()
        ]
        for arm, attempts in arms.items()
    }
    gained = None
    if newest is not None:
        of = held[reference], held[newest], totals
        gained = _gained(*of, which=0), _gained(*of, which=1)
    return ByNeed(_sums(totals), {arm: _sums(pairs) for arm, pairs in held.items()}, gained)


_Pairs = Sequence[tuple[int, int]]


def _apart(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int]:
    """A task's assertions that hold: those that doing nothing meets, and the others."""
    held = [was for was, now in zip(before, after, strict=True) if now]
    return sum(held), len(held) - sum(held)


def _sums(pairs: _Pairs) -> tuple[int, int]:
    return sum(met for met, _ in pairs), sum(unmet for _, unmet in pairs)


def _gained(first: _Pairs, second: _Pairs, totals: _Pairs, which: int) -> Estimate:
    """The change of the share, over the tasks that have such assertions."""
    of_tasks = [
        (a[which], b[which], n[which])
        for a, b, n in zip(first, second, totals, strict=True)
        if n[which]
    ]
    return ratio_difference(*zip(*of_tasks, strict=True)) if of_tasks else Estimate(0.0, None)
