"""Simulated nights on pools whose tasks are solved more and more often, many of them side by side.

Each task has a solve rate whose logit goes up step by step, at a pace of its own that does not
depend on the draws. A group is LEARNABLE if some of its attempts pass and some do not. Draws,
discounts and the posterior are those of the loop, for many nights at once in NumPy:
test_pool_alarm.py holds them to `reward.pool` and `rollout.draw`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betainc, expit, logit

from reward.pool import PRIOR_GROUPS, START_GROUPS
from reward.solve_rate import DISCOUNT, GROUP_DISCOUNT, PRIOR_ATTEMPTS
from rollout.draw.frontier import SHARPNESS

K, BATCH = 4, 8
"""Attempts of a group and tasks of a step, by default."""

Array = np.ndarray[Any, np.dtype[Any]]
Solve = Callable[[int], Array]
"""Step -> the solve rate of every task (N nights x n tasks)."""


# --- nights ---------------------------------------------------------------------------------------


def _start(rng: np.random.Generator, nights: int, n: int) -> Array:
    """The solve rates of data/pool.jsonl: mean 0.45, sd 0.29."""
    rates: Array = logit(np.clip(rng.beta(0.9, 1.1, (nights, n)), 1e-3, 1 - 1e-3))
    return rates


PACE = 0.06
"""Logits a step, on average over the tasks; Gamma(4)."""


def steady(rng: np.random.Generator, nights: int, n: int) -> Solve:
    """No solve rate changes."""
    rates = expit(_start(rng, nights, n))
    return lambda step: rates


def saturating(rng: np.random.Generator, nights: int, n: int) -> Solve:
    """Every task is solved more and more often."""
    start, pace = _start(rng, nights, n), PACE * rng.gamma(4, 0.25, (nights, n))
    return lambda step: np.asarray(expit(start + pace * step))


def plateau(rng: np.random.Generator, nights: int, n: int) -> Solve:
    """The same, but 15 % of the tasks stay as they are, most of them learnable."""
    start, pace = _start(rng, nights, n), PACE * rng.gamma(4, 0.25, (nights, n))
    stays = rng.random((nights, n)) < 0.15
    start = np.where(stays, rng.normal(0, 1, (nights, n)), start)
    pace[stays] = 0
    return lambda step: np.asarray(expit(start + pace * step))


def hard(rng: np.random.Generator, nights: int, n: int) -> Solve:
    """Most tasks are hardly ever solved, and no solve rate changes."""
    rates = expit(rng.normal(-3, 1.5, (nights, n)))
    return lambda step: np.asarray(rates)


def rare(rng: np.random.Generator, nights: int, n: int) -> Solve:
    """Nearly all tasks are hardly ever solved: some 14 % of the groups are learnable, not much more
    than the bound."""
    rates = expit(rng.normal(-4, 1.5, (nights, n)))
    return lambda step: np.asarray(rates)


KINDS: dict[str, Callable[[np.random.Generator, int, int], Solve]] = {
    "steady": steady,
    "saturating": saturating,
    "plateau": plateau,
    "hard": hard,
    "rare": rare,
}


# --- the loop's formulas, for many nights at once -------------------------------------------------


@dataclass
class Sums:
    """`reward.solve_rate.DrawSums` of N nights on pools of n tasks: arrays of N x n."""

    passed: Array
    failed: Array
    learnable: Array
    silent: Array
    at_start: float
    """What is left of the groups before the first step."""

    @classmethod
    def empty(cls, nights: int, n: int, at_start: float = START_GROUPS) -> Sums:
        """Before the first step."""
        passed, failed, learnable, silent = np.zeros((4, nights, n))
        return cls(passed, failed, learnable, silent, at_start)

    def discount(self, group_discount: float = GROUP_DISCOUNT) -> None:
        """One step later."""
        for attempts in (self.passed, self.failed):
            attempts *= DISCOUNT
        for groups in (self.learnable, self.silent):
            groups *= group_discount
        self.at_start *= group_discount

    def add(self, chosen: Array, passes: Array, played: Array) -> None:
        """Add groups: chosen, N x b indices; passes of K attempts; played: whether each was."""
        rows = np.arange(len(chosen))[:, None]
        differs = (passes > 0) & (passes < K)
        np.add.at(self.passed, (rows, chosen), np.where(played, passes, 0))
        np.add.at(self.failed, (rows, chosen), np.where(played, K - passes, 0))
        np.add.at(self.learnable, (rows, chosen), played & differs)
        np.add.at(self.silent, (rows, chosen), played & ~differs)

    def frontier_weights(self) -> Array:
        """`rollout.draw.frontier.frontier_weights`."""
        passed = self.passed.sum(1, keepdims=True)
        mean = (passed + 1) / (passed + self.failed.sum(1, keepdims=True) + 2)
        passes, fails = (
            PRIOR_ATTEMPTS * mean + self.passed,
            PRIOR_ATTEMPTS * (1 - mean) + self.failed,
        )
        all_pass, all_fail = np.ones_like(passes), np.ones_like(passes)
        for i in range(K):
            all_pass *= (passes + i) / (passes + fails + i)
            all_fail *= (fails + i) / (passes + fails + i)
        weights: Array = (1 - all_pass - all_fail) ** SHARPNESS
        return weights

    def probability(self, chances: Array, bound: float) -> Array:
        """`PoolState.probability` of each night; 0 where the expected share is not below the
        bound. chances: N x n, each row sums to 1."""
        n = self.learnable + self.silent
        weight = (PRIOR_GROUPS + 1) / (PRIOR_GROUPS + np.maximum(1, n))
        prior = 1 + self.at_start / 2
        a, b = prior + (weight * self.learnable).sum(1), prior + (weight * self.silent).sum(1)
        m, m_variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
        q = (PRIOR_GROUPS * m[:, None] + self.learnable) / (PRIOR_GROUPS + n)
        share = (chances * q).sum(1)
        own = (chances**2 * q * (1 - q) / (PRIOR_GROUPS + n + 1)).sum(1)
        follows_m = (chances * PRIOR_GROUPS / (PRIOR_GROUPS + n)).sum(1)
        size = share * (1 - share) / (own + follows_m**2 * m_variance) - 1
        below: Array = betainc(share * size, (1 - share) * size, bound)
        return np.where(share < bound, below, 0.0)


def inclusion(weights: Array) -> Array:
    """`rollout.draw.rules.chances` times the places, of each night's weights."""
    tau = np.zeros((len(weights), 1))
    while (
        (missing := BATCH + np.expm1(-weights * tau).sum(1, keepdims=True)) > 1e-9 * BATCH
    ).any():
        tau += missing / (weights * np.exp(-weights * tau)).sum(1, keepdims=True)
    found: Array = -np.expm1(-weights * tau)
    return found


class Passes:
    """Uniform draws: shuffled passes of each night's own."""

    def __init__(self, rng: np.random.Generator, nights: int, n: int) -> None:
        self.rng, self.nights, self.n = rng, nights, n
        self.order = np.concatenate([self._shuffled(), self._shuffled()], axis=1)
        self.at = np.zeros(nights, dtype=int)

    def _shuffled(self) -> Array:
        return np.argsort(self.rng.random((self.nights, self.n)), axis=1)

    def next(self, groups: int) -> Array:
        """The next tasks of each night, some of which may not be played."""
        return np.take_along_axis(self.order, self.at[:, None] + np.arange(groups), axis=1)

    def take(self, played: Array) -> None:
        """Go on by so many tasks, night by night."""
        self.at += played
        done = self.at >= self.n
        if done.any():
            self.order[done] = np.concatenate([self.order[:, self.n :], self._shuffled()], 1)[done]
            self.at[done] -= self.n


@dataclass(frozen=True)
class Setting:
    """One kind of night. spare: `rollout.resample`."""

    kind: str
    n: int
    draw: str = "uniform"
    spare: int = 0
    nights: int = 200
    steps: int = 400

    @property
    def told(self) -> str:
        """In the tables."""
        return f"{self.draw}, {self.spare} spare" if self.spare else self.draw


@dataclass(frozen=True)
class Step:
    """What a step of all nights was: the expected share of learnable groups as tasks were drawn,
    by the true solve rates; the tasks that were chosen, their passes, and which were played."""

    number: int
    truth: Array
    chances: Array
    chosen: Array
    passes: Array
    played: Array
    sums: Sums

    @property
    def differs(self) -> Array:
        """Which groups were played and learnable."""
        found: Array = self.played & (self.passes > 0) & (self.passes < K)
        return found


def play(
    s: Setting,
    seed: int = 0,
    group_discount: float = GROUP_DISCOUNT,
    start_groups: float = START_GROUPS,
) -> Iterator[Step]:
    """The steps of all nights of a setting; `chances` are those of the step after."""
    rng = np.random.default_rng([seed, s.n, s.spare])
    solve, sums = KINDS[s.kind](rng, s.nights, s.n), Sums.empty(s.nights, s.n, start_groups)
    passes_over, alike = Passes(rng, s.nights, s.n), np.full((s.nights, s.n), 1 / s.n)
    wanted = BATCH + s.spare
    chances, weights = alike, alike
    for number in range(1, s.steps + 1):
        rates = solve(number)
        truth = (chances * (1 - rates**K - (1 - rates) ** K)).sum(1)
        if s.draw == "frontier":
            keys = np.log(rng.random((s.nights, s.n))) / weights
            chosen = np.argsort(-keys, axis=1)[:, :wanted]
        else:
            chosen = passes_over.next(wanted)
        passes = rng.binomial(K, np.take_along_axis(rates, chosen, axis=1))
        mixed = np.cumsum((passes > 0) & (passes < K), axis=1)
        before = np.concatenate([np.zeros((s.nights, 1), dtype=int), mixed[:, :-1]], axis=1)
        played = (np.arange(wanted) < BATCH) | (before < BATCH)
        passes_over.take(played.sum(1))
        sums.discount(group_discount)
        sums.add(chosen, passes, played)
        if s.draw == "frontier":
            weights = sums.frontier_weights()
            chances = inclusion(weights) / BATCH
        yield Step(number, truth, chances, chosen, passes, played, sums)
