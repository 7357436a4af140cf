"""What a group can teach: the one place that turns rewards and grades into a `Signal`.

Rollout, trainer and convergence all decide on this enum, so it agrees with the advantages by
construction: a group is LEARNABLE exactly when some advantage is not zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldkit.eval.grade import Grade
from fieldkit.records import Signal
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
