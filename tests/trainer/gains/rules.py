"""Rules that turn a group's episodes into a weight for each turn, and what is to be gained.

A `Rule` is what a step trains with: settings of the reward, a credit rule, and what becomes of
unlikely tokens that are pushed down. A goal is an outcome of an episode; `goal_weights` are those
with which the sum over turns estimates the gradient of its mean without bias.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fieldkit.records import StopReason, Trajectory
from reward.credit import states_of
from reward.reward import Reward
from reward.shaping import RewardSettings
from tests.trainer.gains.turn_gradients import Row

Weights = dict[tuple[int, int], float]
"""(k, turn) → weight."""


@dataclass(frozen=True)
class Rule:
    """What a step trains with. unlikely: weight of unlikely tokens of a turn whose advantage is
    negative. negative: weight of every turn whose advantage is negative."""

    reward: Reward
    unlikely: float = 1.0
    negative: float = 1.0

    def weights(self, group: Sequence[Trajectory], rows: Sequence[Row]) -> list[float]:
        """The weight of each row."""
        of = self._advantages(group)
        return [self._weight(of[row.k, row.turn], row) for row in rows]

    def _weight(self, advantage: float, row: Row) -> float:
        if advantage >= 0:
            return advantage
        return advantage * self.negative * (self.unlikely if row.unlikely else 1.0)

    def _advantages(self, group: Sequence[Trajectory]) -> Weights:
        paid = [*map(self.reward.paid, group)]
        return {
            (t.k, turn): advantage
            for t, turns in zip(paid, self.reward.of_turns(paid), strict=True)
            for turn, advantage in enumerate(turns)
        }


def shaped(
    credit: str = "state",
    turn_penalty: float = 0.5,
    *,
    bonus: float = 0.0,
    finish: float = 0.0,
    claim: float = 0.0,
    once: bool = False,
    kind: str = "shaped",
) -> Rule:
    """A rule by its settings; the cost of a turn is that of the nights that its figures are of."""
    settings = RewardSettings(
        kind=kind,
        turn_penalty=turn_penalty,
        pass_bonus=bonus,
        finish_bonus=finish,
        false_claim_penalty=claim,
        pay_implied=not once,
    )
    return Rule(Reward(settings, "mean", credit))


Outcome = Callable[[Trajectory], float]

GOALS: Mapping[str, Outcome] = {
    "passes": lambda t: float(t.grade.passed),
    "assertions": lambda t: t.grade.rate,
    "stops": lambda t: float(t.stop_reason is StopReason.TASK_COMPLETE),
    "turns": lambda t: float(len(t.turns)),
}


def goal_weights(outcome: Outcome, group: Sequence[Trajectory], rows: Sequence[Row]) -> list[float]:
    """The weight of each row in the gradient of an outcome's mean over episodes.

    A turn's weight is the episode's outcome minus that of the *other* episodes where they were in
    the same state (of all of them where none was), so the baseline does not depend on what the turn
    did, and the estimate has no bias.
    """
    values = {t.k: outcome(t) for t in group}
    states = {t.k: states_of([turn.reward for turn in t.turns]) for t in group}
    weights: Weights = {}
    for t in group:
        others = [k for k in values if k != t.k]
        for turn, state in enumerate(states[t.k]):
            met = [values[k] for k in others for visited in states[k] if visited == state]
            baseline = statistics.fmean(met or [values[k] for k in others])
            weights[t.k, turn] = values[t.k] - baseline
    return [weights[row.k, row.turn] / len(group) for row in rows]
