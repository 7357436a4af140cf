"""Sums over episodes: passes, stops, turns, tokens and rewards.

The summaries of a step, an evaluation and a preflight use them. This module counts stored episodes
and plays nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fieldkit.records import StopReason, Trajectory, ended_by_themselves
from reward.group_signal import is_paid


@dataclass(frozen=True)
class Totals:
    """Sums over at least one trajectory. tokens: sampled. rewards: in the order given, of those to
    which a reward applies."""

    n: int
    passed: int
    assertions_passed: int
    assertions_total: int
    turns: int
    tokens: int
    rewards: tuple[float, ...]
    stops: Mapping[StopReason, int]

    @property
    def pass_rate(self) -> float:
        return self.passed / self.n

    @property
    def assertion_rate(self) -> float:
        return self.assertions_passed / max(1, self.assertions_total)

    @property
    def stop_rate(self) -> float:
        """Share of episodes that no limit ended."""
        return ended_by_themselves(self.stops) / self.n

    @property
    def mean_turns(self) -> float:
        return self.turns / self.n

    @property
    def mean_tokens(self) -> float:
        return self.tokens / self.n

    @property
    def mean_reward(self) -> float:
        """0 where no reward applies to any."""
        return statistics.fmean(self.rewards or (0.0,))


def totals(trajectories: Sequence[Trajectory]) -> Totals:
    """Add up at least one trajectory."""
    grades = [t.grade for t in trajectories]
    turns = [turn for t in trajectories for turn in t.turns]
    return Totals(
        n=len(trajectories),
        passed=sum(g.passed for g in grades),
        assertions_passed=sum(g.n_passed for g in grades),
        assertions_total=sum(g.n_total for g in grades),
        turns=len(turns),
        tokens=sum(len(turn.completion_ids) for turn in turns),
        rewards=tuple(t.reward for t in trajectories if is_paid(t)),
        stops=dict(Counter(t.stop_reason for t in trajectories)),
    )
