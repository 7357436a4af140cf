"""The credit rules: how every turn of an episode gets its advantage.

One advantage for a whole episode credits the turn that says "done" with the work before it.
`turn_advantages` credits a turn with what followed it, compared with what followed the same turn in
the group: the policy gradient with rewards-to-go and a baseline by time (Sutton et al. 2000,
theorem 1; Williams 1992), group-relative as in `fieldkit.training.advantages`. Nothing here plays
or trains.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from fieldkit.registry import Registry
from fieldkit.training.advantages import (
    ADVANTAGE_EPS,
    Scale,
    all_equal,
    check_rewards,
    group_advantages,
)


def turn_advantages(
    rewards: Sequence[float], earned: Sequence[Sequence[float]], scale: Scale = "std"
) -> tuple[tuple[float, ...], ...]:
    """K rewards, and what each turn earned → an advantage for every turn of the K rollouts.

    The reward-to-go of turn t is the episode's reward minus what was earned before t; that of an
    episode that has ended is what no turn accounts for. Its advantage is the difference to the mean
    over all K at the same t, so that of the first turn is the episode's r − μ. "std" divides by the
    root mean square over all turns of the group (+ 1e-4), "mean" by nothing. Equal rewards give
    exact zeros, as in `group_advantages`. Raises as `check_rewards`.
    """
    check_rewards(rewards)
    if all_equal(rewards):
        return tuple((0.0,) * len(turns) for turns in earned)
    longest = max(len(turns) for turns in earned)
    to_go = [_to_go(r, turns, longest) for r, turns in zip(rewards, earned, strict=True)]
    baselines = [statistics.fmean(row[t] for row in to_go) for t in range(longest)]
    centred = [
        [row[t] - baselines[t] for t in range(len(turns))]
        for row, turns in zip(to_go, earned, strict=True)
    ]
    divisor = 1.0
    if scale == "std":
        divisor = statistics.fmean(a * a for row in centred for a in row) ** 0.5 + ADVANTAGE_EPS
    return tuple(tuple(a / divisor for a in row) for row in centred)


def _to_go(reward: float, earned: Sequence[float], longest: int) -> list[float]:
    """Rewards-to-go of turns 0..longest − 1; the last one stays where the episode has ended."""
    out = [reward]
    for gain in earned:
        out.append(out[-1] - gain)
    return (out + [out[-1]] * longest)[:longest]


def episode_advantages(
    rewards: Sequence[float], earned: Sequence[Sequence[float]], scale: Scale = "std"
) -> tuple[tuple[float, ...], ...]:
    """GRPO as published: every turn has the advantage of its episode."""
    advantages = group_advantages(rewards, scale)
    return tuple((a,) * len(turns) for a, turns in zip(advantages, earned, strict=True))


CreditRule = Callable[
    [Sequence[float], Sequence[Sequence[float]], Scale], tuple[tuple[float, ...], ...]
]
"""K rewards, what each turn earned, and the scale → an advantage for every turn. Equal rewards have
to give zeros: a group without signal must not train."""

CREDITS: Registry[CreditRule] = Registry("credit rule")
"""By the name that `advantages.credit` gives."""
CREDITS.register("episode", episode_advantages)
CREDITS.register("turn", turn_advantages)
