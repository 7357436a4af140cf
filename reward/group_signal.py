"""Turns the rewards and grades of a group into a `Signal`: what the group can teach.

Rollout, trainer and convergence decide by this enum. It agrees with the advantages: a group is
LEARNABLE exactly when some advantage is not zero. Convergence depends only on the work
(`work_signal`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fieldkit.eval.grade import Grade
from fieldkit.records import Draw, RolloutGroup, Signal, StopReason, Trajectory
from fieldkit.training.advantages import all_equal, check_rewards


def group_signal(rewards: Sequence[float], grades: Sequence[Grade]) -> Signal:
    """The signal of a group from its K rewards and K grades, in the same order.

    Raises `BadInput` for K < 2, and `ValueError` for a reward that is not finite or when the two
    lengths differ.
    """
    check_rewards(rewards)
    if len(rewards) != len(grades):
        raise ValueError(f"{len(rewards)} rewards but {len(grades)} grades")
    if not all_equal(rewards):
        return Signal.LEARNABLE
    return Signal.SATURATED if all(g.passed for g in grades) else Signal.STUCK


def work_signal(group: RolloutGroup) -> Signal:
    """A group's signal; none if its K episodes differ only in their turns.

    Under a turn penalty the rewards differ as long as one attempt is a turn shorter than another,
    so a pool would never converge. Such a group is trained on, but is no evidence about the pool. A
    turn penalty inside an environment's own reward parts cannot be separated from the work.
    """
    paid = list(filter(is_paid, group.trajectories))
    grades = [t.grade for t in paid]
    if group.signal is not Signal.LEARNABLE or any(g.rewards for g in grades):
        return group.signal
    done = {tuple(result.passed for result in g.results) for g in grades}
    ended = {t.stop_reason.by_itself for t in paid}
    if len(done) > 1 or len(ended) > 1:
        return group.signal
    work = done.pop()
    return Signal.SATURATED if work and all(work) else Signal.STUCK


LATE = "late"
"""The metric of an attempt that a late call ended; others do not have it."""


def had_no_room(t: Trajectory) -> bool:
    """Whether the opening of an attempt left no room for a reply."""
    return not t.turns and t.stop_reason is StopReason.CONTEXT_FULL


def was_late(t: Trajectory) -> bool:
    """A call of its last reply had no answer in time, so that nothing could be graded."""
    return bool(t.metrics.get(LATE))


def is_paid(t: Trajectory) -> bool:
    """Whether an attempt tells anything of the policy: a reward applies to it, and it began."""
    return not (t.grade.unrewarded or had_no_room(t))


def draw_of(group: RolloutGroup) -> Draw:
    """A group's entry in the pool's history."""
    paid = list(filter(is_paid, group.trajectories))
    passed = sum(t.grade.passed for t in paid)
    return Draw(sys.intern(group.task_id), work_signal(group), passed, len(paid), group.left_out)
