"""Which turn of an episode earned what: advantages by turn instead of by episode.

One advantage for a whole episode pays the turn that says "done" for whatever went right or wrong in
the work before it. Here a turn is credited with what followed it, against what followed the same
turn in its siblings: the policy gradient with rewards-to-go and a baseline by time (Sutton et al.
2000, theorem 1; Williams 1992), group-relative as in `fieldkit.training.advantages`. Nothing here
plays or trains.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fieldkit.records import Trajectory
from fieldkit.training.advantages import (
    ADVANTAGE_EPS,
    Scale,
    all_equal,
    check_rewards,
    group_advantages,
)
from reward.shaping import RewardKind, RewardSettings

Credit = Literal["episode", "turn"]
"""Whether every turn of an episode has the episode's advantage, or each its own."""


@dataclass(frozen=True)
class Crediting:
    """How a group's attempts become its advantages."""

    scale: Scale = "std"
    credit: Credit = "episode"
    reward: RewardSettings = field(default_factory=RewardSettings)
    """What the rewards were made with: the price of a turn."""

    def of_episodes(self, trajectories: Sequence[Trajectory]) -> tuple[float, ...]:
        """An advantage for each of the K attempts."""
        return group_advantages([t.reward for t in trajectories], self.scale)

    def of_turns(self, trajectories: Sequence[Trajectory]) -> tuple[tuple[float, ...], ...] | None:
        """An advantage for each turn of the K attempts; None where the episode's counts."""
        if self.credit == "episode":
            return None
        rewards = [t.reward for t in trajectories]
        return turn_advantages(rewards, [earned(t, self.reward) for t in trajectories], self.scale)


BY_EPISODE = Crediting()
"""GRPO as published: one advantage an attempt, divided by the group's standard deviation."""


def earned(trajectory: Trajectory, settings: RewardSettings) -> tuple[float, ...]:
    """What each turn earned by itself: the progress that the environment saw, minus its price.

    The price is λ/max_turns of the shaped reward; a binary reward charges nothing and pays for the
    end alone. Progress is `Turn.reward`, 0 where the environment says nothing.
    """
    if settings.kind is RewardKind.BINARY:
        return (0.0,) * len(trajectory.turns)
    price = settings.turn_penalty / settings.max_turns
    return tuple((turn.reward or 0.0) - price for turn in trajectory.turns)


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
