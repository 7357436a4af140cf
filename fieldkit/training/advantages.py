"""The rewards of one group as advantages: each rollout against its siblings.

This is the baseline that GRPO uses instead of a critic (Shao et al. 2024, DeepSeekMath,
arXiv:2402.03300, section 4.1.2). A number that is not finite is an error: one NaN here would reach
every weight of the adapter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from fieldkit.errors import BadInput

ADVANTAGE_EPS = 1e-4
"""Added to σ, so that a tiny spread is not scaled up to the size of a real one."""

EQUAL_WITHIN = 1e-9
"""Rewards closer than this are equal. 0.5 in 6 turns and 0.6 in 12 are both worth 0.4 and differ
in the last bit; rounding must not count as signal."""

MIN_GROUP_FOR_SPREAD = 4
"""With fewer rollouts the normalised advantages say little about how far apart the rewards were."""

Scale = Literal["std", "mean"]
"""What advantages are divided by: the group's standard deviation, or nothing."""


def check_rewards(rewards: Sequence[float]) -> None:
    """Raise `BadInput` for a group of fewer than two and for a reward that is not finite."""
    if len(rewards) < 2:
        raise BadInput(
            f"group_size: a group of {len(rewards)} has nothing to compare with; it takes 2 or"
            f" more, and {MIN_GROUP_FOR_SPREAD} for a fair baseline"
        )
    for k, r in enumerate(rewards):
        if not math.isfinite(r):
            raise BadInput(f"the reward of rollout k={k} is {r}, not a finite number")


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether the group's rewards are the same up to rounding, and so hold nothing to learn."""
    return max(rewards) - min(rewards) <= EQUAL_WITHIN


def group_advantages(rewards: Sequence[float], scale: Scale = "std") -> tuple[float, ...]:
    """K rewards, also as an array or a 1-D tensor → K advantages, in the same order.

    "std": (r − μ)/(σ + 1e-4) with the sample standard deviation (K − 1 in the denominator).
    "mean": r − μ, which keeps how far apart the rollouts were (Liu et al. 2025, arXiv:2503.20783).
    Equal rewards give exact zeros. At K = 2 "std" erases the spread: every unequal pair gives about
    ±0.71. Raises `BadInput` for fewer than two rewards, an unknown scale and a reward that is not
    finite.

    >>> group_advantages([1.0, 0.0, 0.5, 0.5], "mean")
    (0.5, -0.5, 0.0, 0.0)
    """
    rewards = [float(r) for r in rewards]  # `statistics` takes no element of a tensor
    check_rewards(rewards)
    if scale not in ("std", "mean"):
        raise BadInput(f"advantage scale: {scale!r} is unknown; use std or mean")
    if all_equal(rewards):
        return (0.0,) * len(rewards)
    mean = statistics.fmean(rewards)
    divisor = statistics.stdev(rewards, mean) + ADVANTAGE_EPS if scale == "std" else 1.0
    return tuple((r - mean) / divisor for r in rewards)


def leave_one_out(rewards: Sequence[float], scale: Scale = "mean") -> tuple[float, ...]:
    """K rewards → K advantages against the mean of the other K − 1: the baseline of RLOO.

    r_i − mean of r_j, j ≠ i (Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!";
    Ahmadian et al. 2024, arXiv:2402.14740, section 2): unbiased, since the baseline does not depend
    on what it is taken from. It is K/(K − 1) times `group_advantages`, whose `scale` and errors it
    has; RLOO itself divides by nothing.

    >>> leave_one_out([1.0, 0.0, 0.5])
    (0.75, -0.75, 0.0)
    """
    k = len(rewards)
    return tuple(a * k / (k - 1) for a in group_advantages(rewards, scale))


def group_size_warning(group_size: int, scale: Scale = "std") -> str | None:
    """A warning about a small K, or None. Raises `BadInput` for a K below 2."""
    if group_size < 2:
        check_rewards((0.0,) * group_size)
    if group_size == 2 and scale == "std":
        return (
            "with K = 2 the size of a difference is erased (every unequal pair gives the same);"
            f" use {MIN_GROUP_FOR_SPREAD} or more, or the mean scale"
        )
    if group_size < MIN_GROUP_FOR_SPREAD:
        return (
            f"K = {group_size} gives a rough baseline and many groups without signal;"
            f" use {MIN_GROUP_FOR_SPREAD} or more"
        )
    return None
