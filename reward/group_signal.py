"""What a group can teach: the one place that turns rewards and grades into a `Signal`.

Rollout, trainer and convergence all decide on this enum, so it agrees with the advantages by
construction: a group is LEARNABLE exactly when some advantage is not zero. Convergence asks about
the work alone (`work_signal`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldkit.eval.grade import Grade
from fieldkit.records import Draw, RolloutGroup, Signal
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
    """A group's signal, which counts as none where its K episodes differ by turns alone.

    Under a turn penalty rewards go on differing for as long as one attempt is a turn shorter than
    another, so a pool would never be learned out. Such a group trains, and says nothing about the
    pool. Turns within the parts of a reward that an environment gives cannot be told from work.
    """
    grades = [t.grade for t in group.trajectories]
    if group.signal is not Signal.LEARNABLE or any(g.rewards for g in grades):
        return group.signal
    done = {tuple(result.passed for result in g.results) for g in grades}
    ended = {t.stop_reason.by_itself for t in group.trajectories}
    if len(done) > 1 or len(ended) > 1:
        return group.signal
    work = done.pop()
    return Signal.SATURATED if work and all(work) else Signal.STUCK


def draw_of(group: RolloutGroup) -> Draw:
    """What the pool's history keeps of a group."""
    passed = sum(t.grade.passed for t in group.trajectories)
    return Draw(group.task_id, work_signal(group), passed, len(group.trajectories), group.left_out)
