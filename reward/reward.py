"""The reward of a run: grades become rewards, and the rewards of a group become advantages.

All code that plays episodes, rescores them or takes them over uses this object. The kinds of reward
are in `reward.shaping`, the credit rules in `reward.credit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fieldkit.eval.grade import Grade
from fieldkit.records import Signal, StopReason, Trajectory, Turn
from fieldkit.training.advantages import Scale, group_advantages
from reward.credit import CREDITS, group_states
from reward.group_signal import group_signal, is_paid
from reward.shaping import RewardSettings, earned_by_turns, overtime, reward

_T = TypeVar("_T")


@dataclass(frozen=True)
class Reward:
    """A kind of reward with its settings, and how a group's rewards become advantages."""

    settings: RewardSettings = field(default_factory=RewardSettings)
    scale: Scale = "std"
    credit: str = "turn"
    """A name in `reward.credit.CREDITS`."""

    def of_episode(self, grade: Grade, turns: Sequence[Turn], stop: StopReason) -> float:
        """The reward of one episode that ended by `stop`. For a grade with reward parts it is their
        weighted sum (0 if none applies, see `of_group`; `ValueError` where it is not finite); for
        one with assertions it is `reward.shaping.reward`, whose errors it raises."""
        if grade.rewards:
            paid = grade.reward or 0.0
            if not math.isfinite(paid):
                raise ValueError(f"its weighted reward parts add up to {paid}")
            return paid
        n_overtime = overtime(turns, grade, self.settings)
        return reward(grade, len(turns), self.settings, stop, n_overtime)

    def paid(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with the reward of `of_episode`, whose errors it raises."""
        t = trajectory
        return replace(t, reward=self.of_episode(t.grade, t.turns, t.stop_reason))

    def of_group(self, trajectories: Sequence[Trajectory]) -> tuple[float, ...]:
        """An advantage for each of a group's K episodes, from their rewards. An episode to which no
        reward part applies, or whose opening left no room for a turn, has 0 and is not part of the
        mean."""
        return _over_paid(
            trajectories,
            lambda t: 0.0,
            lambda paid: group_advantages([t.reward for t in paid], self.scale),
        )

    def of_turns(self, trajectories: Sequence[Trajectory]) -> tuple[tuple[float, ...], ...]:
        """An advantage for each turn of a group's K episodes; 0 as in `of_group`."""
        return _over_paid(trajectories, lambda t: (0.0,) * len(t.turns), self._credited)

    def signal(self, trajectories: Sequence[Trajectory]) -> Signal:
        """What the group can teach, from the episodes to which a reward applies."""
        paid = _paid(trajectories)
        if len(paid) < 2 <= len(trajectories):
            return Signal.STUCK
        return group_signal([t.reward for t in paid], [t.grade for t in paid])

    def _credited(self, trajectories: Sequence[Trajectory]) -> Sequence[tuple[float, ...]]:
        earned = [
            # What the environment paid with each turn; all else of its parts is paid at the end.
            tuple(turn.reward or 0.0 for turn in t.turns)
            if t.grade.rewards
            else earned_by_turns(t.turns, t.grade, self.settings, t.stop_reason)
            for t in trajectories
        ]
        states = group_states([[turn.reward for turn in t.turns] for t in trajectories])
        return CREDITS[self.credit]([t.reward for t in trajectories], earned, states, self.scale)


def _paid(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return list(filter(is_paid, trajectories))


def _over_paid(
    trajectories: Sequence[Trajectory],
    nothing: Callable[[Trajectory], _T],
    of: Callable[[Sequence[Trajectory]], Sequence[_T]],
) -> tuple[_T, ...]:
    """What `of` finds for those to which a reward applies, and `nothing` for the others; for all
    where a group has fewer than two of the former."""
    paid = _paid(trajectories)
    if len(paid) < 2 <= len(trajectories):
        return tuple(map(nothing, trajectories))
    found = iter(of(paid))
    return tuple(next(found) if is_paid(t) else nothing(t) for t in trajectories)
