"""The probability that the policy solves a task, estimated from earlier attempts.

`DrawSums` is what earlier steps leave for the next draw and for the state of the pool
(`reward.pool`). It does not grow with the number of steps.

Each task's solve rate has a Beta distribution. The prior comes from the pool: its mean is the share
of all attempts that passed, and it has the weight of `PRIOR_ATTEMPTS` attempts. Attempts of older
policies count less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fieldkit.records import Draw, Signal

PRIOR_ATTEMPTS = 2.0
"""At a mean of 0.45 a group of four is then mixed with probability 0.59."""

DISCOUNT = 0.97
"""An attempt's weight falls by this factor with every step: by half in 23 steps."""

GROUP_DISCOUNT = 0.95
"""The same for a group as evidence about its task's signal: by half in 14 steps. With 0.97 the end
of a pool is seen 15 steps later, with 0.9 it is sometimes seen before it is there
(docs/pool-alarm.md)."""


@dataclass(frozen=True)
class Attempts:
    """A task's attempts that passed and that failed, and its groups that were LEARNABLE and that
    were not, all weighted as after `step`, when it was last drawn.

    was_silent: after an earlier draw its silent groups outweighed the LEARNABLE ones.
    """

    passed: float
    failed: float
    step: int
    learnable: float
    silent: float
    was_silent: bool

    @property
    def is_silent(self) -> bool:
        """Whether the groups without signal outweigh those with one. Time changes nothing, because
        both lose weight alike."""
        return self.silent > self.learnable

    def at(self, step: int) -> Attempts:
        """The same attempts, weighted as after a later step."""
        older = step - self.step
        weight, group = DISCOUNT**older, GROUP_DISCOUNT**older
        return Attempts(
            weight * self.passed,
            weight * self.failed,
            step,
            group * self.learnable,
            group * self.silent,
            self.was_silent,
        )

    def plus(self, drawn: Draw, step: int) -> Attempts:
        """With a group of a later step, or of the same."""
        before, differs = self.at(step), drawn.signal is Signal.LEARNABLE
        return Attempts(
            before.passed + drawn.passed,
            before.failed + (drawn.played - drawn.passed),
            step,
            before.learnable + differs,
            before.silent + (not differs),
            before.was_silent or before.is_silent,
        )


def no_attempts(step: int) -> Attempts:
    """Of a task that was never drawn."""
    return Attempts(0.0, 0.0, step, 0.0, 0.0, False)


@dataclass(frozen=True)
class DrawSums:
    """Sums over the draws of the steps 1 to `step`."""

    step: int = 0
    drew: tuple[tuple[int, int], ...] = ()
    """(step, groups): from that step on, each step drew so many groups; 0 where that is not
    known."""
    attempts: Mapping[str, Attempts] = field(default_factory=dict)

    def plus(self, step: int, draws: Iterable[Draw]) -> DrawSums:
        """With the draws of a later step; those of the steps between are not known."""
        found, groups = dict(self.attempts), list(draws)
        for d in groups:
            found[d.task_id] = found.get(d.task_id, no_attempts(step)).plus(d, step)
        between = [(self.step + 1, 0)] if step > self.step + 1 else []
        drew = list(self.drew)
        for change in (*between, (step, len(groups))):
            if not drew or drew[-1][1] != change[1]:
                drew.append(change)
        return DrawSums(step, tuple(drew), found)

    def groups(self, steps: int) -> list[int]:
        """How many groups each of the steps 1 to `steps` drew; 0 where that is not known."""
        ends = [first for first, _ in self.drew[1:]] + [self.step + 1]
        found = [0] * max(steps, self.step)
        for (first, n), end in zip(self.drew, ends, strict=False):
            found[first - 1 : end - 1] = [n] * (end - first)
        return found[:steps]


@dataclass(frozen=True)
class SolveRate:
    """Beta(passes, fails), the distribution of a task's solve rate. Both are above 0."""

    passes: float
    fails: float

    @property
    def mean(self) -> float:
        """The expected solve rate."""
        return self.passes / (self.passes + self.fails)

    def mixed(self, k: int) -> float:
        """The probability that of k attempts some pass and some do not: 1 − E[p^k] − E[(1 − p)^k],
        each a product of k ratios.

        >>> round(SolveRate(1, 1).mixed(4), 6)
        0.6
        """
        all_pass = all_fail = 1.0
        for i in range(k):
            n = self.passes + self.fails + i
            all_pass *= (self.passes + i) / n
            all_fail *= (self.fails + i) / n
        return 1.0 - all_pass - all_fail


def solve_rates(sums: DrawSums, pool: Sequence[str], step: int) -> dict[str, SolveRate]:
    """The solve rate of every task of the pool (task ids) before `step` is played."""
    none = no_attempts(step - 1)
    found = {task: sums.attempts.get(task, none).at(step - 1) for task in pool}
    n_passed = sum(a.passed for a in found.values())
    n_failed = sum(a.failed for a in found.values())
    mean = (n_passed + 1) / (n_passed + n_failed + 2)
    prior, doubt = PRIOR_ATTEMPTS * mean, PRIOR_ATTEMPTS * (1 - mean)
    return {task: SolveRate(prior + a.passed, doubt + a.failed) for task, a in found.items()}
