"""The probability that the policy solves a task, estimated from earlier attempts.

`DrawSums` is what earlier steps leave for the next draw. It does not grow with the number of steps.

Each task's solve rate has a Beta distribution. The prior comes from the pool: its mean is the share
of all attempts that passed, and it has the weight of `PRIOR_ATTEMPTS` attempts. Attempts of older
policies count less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PRIOR_ATTEMPTS = 2.0
"""At a mean of 0.45 a group of four is then mixed with probability 0.59."""

DISCOUNT = 0.97
"""An attempt's weight falls by this factor with every step: by half in 23 steps, a default
night."""


class Played(Protocol):
    """A task's group in a step, as far as it is summed up."""

    @property
    def task_id(self) -> str: ...
    @property
    def passed(self) -> int: ...
    @property
    def played(self) -> int: ...


@dataclass(frozen=True)
class Attempts:
    """A task's attempts that passed and that failed, weighted as after `step`, when it was last
    drawn."""

    passed: float
    failed: float
    step: int

    def at(self, step: int) -> Attempts:
        """The same attempts, weighted as after a later step."""
        weight = DISCOUNT ** (step - self.step)
        return Attempts(weight * self.passed, weight * self.failed, step)

    def plus(self, passed: int, failed: int, step: int) -> Attempts:
        """With the attempts of a later step, or of the same."""
        before = self.at(step)
        return Attempts(before.passed + passed, before.failed + failed, step)


@dataclass(frozen=True)
class DrawSums:
    """Sums over the draws of the steps 1 to `step`."""

    step: int = 0
    drew: tuple[tuple[int, int], ...] = ()
    """(step, groups): from that step on, each step drew so many groups; 0 where that is not
    known."""
    attempts: Mapping[str, Attempts] = field(default_factory=dict)

    def plus(self, step: int, draws: Iterable[Played]) -> DrawSums:
        """With the draws of a later step; those of the steps between are not known."""
        found, groups = dict(self.attempts), list(draws)
        for d in groups:
            before = found.get(d.task_id, Attempts(0.0, 0.0, step))
            found[d.task_id] = before.plus(d.passed, d.played - d.passed, step)
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
    none = Attempts(0.0, 0.0, step - 1)
    found = {task: sums.attempts.get(task, none).at(step - 1) for task in pool}
    n_passed = sum(a.passed for a in found.values())
    n_failed = sum(a.failed for a in found.values())
    mean = (n_passed + 1) / (n_passed + n_failed + 2)
    prior, doubt = PRIOR_ATTEMPTS * mean, PRIOR_ATTEMPTS * (1 - mean)
    return {task: SolveRate(prior + a.passed, doubt + a.failed) for task, a in found.items()}
