"""What is had for nothing: stops with nothing done, and assertions that hold without any work.

A reward that charges for turns, or that pays for assertions such as `file_unchanged`, can rise
while less is done. These counts show it. They need attempts that are graded by assertions; attempts
that an environment pays by parts are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fieldkit.records import Ended, Trajectory

_ROUNDING = 1e-6  # of sums of shares such as 1/3; no task has a million assertions


def progress(trajectory: Trajectory) -> float | None:
    """The change of the share of paid assertions from the start to the end, as the world reported
    it turn by turn; None where it reports none, or pays by parts."""
    t = trajectory
    if t.grade.rewards or any(turn.action.command and turn.reward is None for turn in t.turns):
        return None
    return math.fsum(turn.reward or 0.0 for turn in t.turns)


def ended(trajectories: Sequence[Trajectory]) -> Ended | None:
    """The attempts that no limit ended, and what they had done; None where no attempt's progress
    is known."""
    known = [(t, gain) for t in trajectories if (gain := progress(t)) is not None]
    if not known:
        return None
    stops = [(t, gain) for t, gain in known if t.stop_reason.by_itself]
    return Ended(
        n=len(stops),
        passed=sum(t.grade.passed for t, _ in stops),
        idle=sum(gain < _ROUNDING and not t.grade.passed for t, gain in stops),
    )


@dataclass(frozen=True)
class ByNeed:
    """Assertions by whether doing nothing meets them, and how many of each hold in an arm."""

    n_met: int
    """How many doing nothing meets."""
    n_unmet: int
    """How many need work."""
    held: Mapping[str, tuple[int, int]]
    """Arm → how many of the first hold at the end, and how many of the second."""


def by_need(
    idle: Mapping[str, Trajectory], arms: Mapping[str, Mapping[str, Trajectory]]
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
    n_met, n_all = sum(map(sum, met.values())), sum(map(len, met.values()))
    if not n_all:
        return None
    held = {}
    for arm, attempts in arms.items():
        of_arm = [
            is_met
            for task_id, before in met.items()
            for is_met, result in zip(before, attempts[task_id].grade.results, strict=True)
            if result.passed
        ]
        held[arm] = (sum(of_arm), len(of_arm) - sum(of_arm))
    return ByNeed(n_met, n_all - n_met, held)
