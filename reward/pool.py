"""What the pool can still teach: a state for each task, and the probability that the pool is done.

Everything follows from the discounted sums over the draws (`reward.solve_rate.DrawSums`). The state
is not stored, so a pool to which tasks were added is no longer converged. One batch without signal
may be chance; convergence is a statement about the whole pool, and it has a probability. This
module must not decide from log text or from a single step.

The model. Let q be the probability that a task's next group is LEARNABLE in its work. Among the
tasks of a pool, q has a Beta distribution with mean m and the weight of `PRIOR_GROUPS` groups, so
a task with L LEARNABLE and S silent groups has q ~ Beta(w·m + L, w·(1 − m) + S), w = PRIOR_GROUPS
(Gelman et al., Bayesian Data Analysis, 3rd edition, section 5.3). m has a Beta distribution itself:
a uniform prior, `START_GROUPS` groups that fade like real ones, and all groups of the pool. n
groups of one task say less about m than n groups of n tasks, so they are divided by the design
effect 1 + (n − 1)·ρ with the intraclass correlation ρ = 1/(w + 1) (Kish, Survey Sampling, 1965,
section 5.4). The share of LEARNABLE groups in the next pass is Σ c·q with
the probability c that a place goes to the task. Its mean and variance (law of total variance, over
m) give the Beta distribution with the same moments, of which `probability` is a value of the
distribution function.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from annotated_types import Gt, Lt

from fieldkit.errors import BadInput
from fieldkit.settings import Change, settings
from reward.solve_rate import (
    GROUP_DISCOUNT,
    Attempts,
    DrawSums,
    SolveRate,
    no_attempts,
    solve_rates,
)

PRIOR_GROUPS = 1.0
"""One group of a task weighs as much as all that is known of the pool: most tasks of a pool nearly
always differ, or hardly ever."""

START_GROUPS = 16.0
"""A pool counts before its first step as if it had shown so many groups, half of them LEARNABLE.
They lose weight with every step. The probability is asked for after each step, so without them one
night in twenty on a hard pool (14 % of its groups differ) ended in its first 20 steps by chance;
later they change nothing (docs/pool-alarm.md)."""


@settings("pool", retired={"passes": None})
class PoolSettings:
    """When a pool has converged: the night ends, with exit code 3."""

    bound: Annotated[float, Gt(0), Lt(0.5), Change.LENGTH] = 0.1
    """The share of groups that differ in their work, below which a pool teaches too little. 0.1 is
    less than one group in a step of 8 tasks."""
    confidence: Annotated[float, Gt(0.5), Lt(1), Change.LENGTH] = 0.95
    """The probability that the expected share is below `bound`, from which on the night ends."""


class TaskState(StrEnum):
    """What a task teaches now, by its groups so far; newer ones weigh more.

    No task is retired: no draw rule leaves one out for good.
    """

    FRESH = "fresh"
    """Never drawn."""
    LEARNABLE = "learnable"
    """Its attempts differ in their work in at least half of its groups."""
    REVIVED = "revived"
    """Learnable, after it was saturated or stuck."""
    SATURATED = "saturated"
    """Its attempts mostly do not differ, and most of them pass."""
    STUCK = "stuck"
    """Its attempts mostly do not differ, and most of them fail."""


@dataclass(frozen=True)
class TaskOutlook:
    """One task of a pool. learnable: the probability that its next group is LEARNABLE."""

    state: TaskState
    solve_rate: SolveRate
    learnable: float


@dataclass(frozen=True)
class PoolState:
    """A pool before the next step."""

    tasks: Mapping[str, TaskOutlook]
    share: float
    """The expected share of LEARNABLE groups in the next pass, as tasks are drawn."""
    sd: float
    """The standard deviation of that share, as far as it is unknown."""
    settings: PoolSettings
    unplayed: int = 0
    """Tasks that were added later and never drawn."""

    @cached_property
    def probability(self) -> float:
        """The probability that the share is below the bound."""
        from scipy.special import betainc  # heavy, and seldom asked

        n = self.share * (1 - self.share) / self.sd**2 - 1
        return float(betainc(self.share * n, (1 - self.share) * n, self.settings.bound))

    @property
    def converged(self) -> bool:
        """Whether the pool most probably teaches less than the bound, every added task played."""
        if self.unplayed or self.share >= self.settings.bound:
            return False
        return self.probability >= self.settings.confidence

    def of(self, *states: TaskState) -> tuple[str, ...]:
        """The tasks in these states, in the order of the pool."""
        return tuple(task for task, found in self.tasks.items() if found.state in states)

    @property
    def outlook(self) -> str:
        """The expected share and its probability, as a clause for a person."""
        p = self.probability
        told = f"{p:.2f}" if p >= 0.005 else "below 0.01"
        return (
            f"{100 * self.share:.0f} % of the next pass's groups are expected to differ in their"
            f" work, fewer than {100 * self.settings.bound:.0f} % with probability {told}"
        )

    @property
    def message(self) -> str:
        """One sentence for a person."""
        n = {state: len(self.of(state)) for state in TaskState}
        counts = (
            f"of {len(self.tasks)} tasks {n[TaskState.LEARNABLE] + n[TaskState.REVIVED]} learnable"
            f" ({n[TaskState.REVIVED]} of them revived), {n[TaskState.SATURATED]} saturated (mostly"
            f" pass), {n[TaskState.STUCK]} stuck (mostly fail alike), {n[TaskState.FRESH]} fresh"
            " (never drawn)"
        )
        said = "the pool has converged" if self.converged else "the pool still teaches"
        if self.unplayed:
            said = f"not played yet: {self.unplayed} of the tasks that were added"
        return f"{said}: {self.outlook}; {counts}"


def pool_state(
    sums: DrawSums,
    chances: Mapping[str, float],
    settings: PoolSettings | None = None,
    joined: AbstractSet[str] = frozenset(),
) -> PoolState:
    """The state of the pool before the step after those of `sums`.

    chances: by task id, the probability that a place of the next pass goes to the task; of any
    scale. Tasks that left the pool say nothing. joined: tasks that were added later. The tasks that
    were drawn say nothing about them, so until such a task is drawn its q has a uniform prior, and
    the pool has not converged. Raises `BadInput` for an empty pool.
    """
    if not chances:
        raise BadInput("the pool is empty: there is no task to learn from")
    step, total = sums.step + 1, sum(chances.values())
    seen = {task: sums.attempts.get(task, no_attempts(sums.step)) for task in chances}
    found = {task: attempts.at(sums.step) for task, attempts in seen.items()}
    m, m_variance = _pool_mean(found, START_GROUPS * GROUP_DISCOUNT**sums.step)
    rates = solve_rates(sums, list(chances), step)
    tasks, share, variance, follows_m, unplayed = {}, 0.0, 0.0, 0.0, 0
    for task, a in found.items():
        was_drawn, c = task in sums.attempts, chances[task] / total
        is_new = task in joined and not was_drawn
        unplayed += is_new
        n = 2.0 if is_new else PRIOR_GROUPS + a.learnable + a.silent
        q = 0.5 if is_new else (PRIOR_GROUPS * m + a.learnable) / n
        tasks[task] = TaskOutlook(_state(was_drawn, a), rates[task], q)
        share += c * q
        variance += c**2 * q * (1 - q) / (n + 1)
        follows_m += 0.0 if is_new else c * PRIOR_GROUPS / n
    sd = (variance + follows_m**2 * m_variance) ** 0.5
    return PoolState(tasks, share, sd, settings or PoolSettings(), unplayed)


def _pool_mean(found: Mapping[str, Attempts], at_start: float) -> tuple[float, float]:
    """Mean and variance of m, the mean probability of a LEARNABLE group among the tasks. at_start:
    what is left of `START_GROUPS`."""
    learnable = silent = 1.0 + at_start / 2
    for a in found.values():
        n = a.learnable + a.silent
        weight = (PRIOR_GROUPS + 1) / (PRIOR_GROUPS + max(1.0, n))
        learnable += weight * a.learnable
        silent += weight * a.silent
    n = learnable + silent
    return learnable / n, learnable * silent / (n**2 * (n + 1))


def _state(was_drawn: bool, a: Attempts) -> TaskState:
    if not was_drawn:
        return TaskState.FRESH
    if not a.is_silent:
        return TaskState.REVIVED if a.was_silent else TaskState.LEARNABLE
    return TaskState.SATURATED if a.passed > a.failed else TaskState.STUCK
