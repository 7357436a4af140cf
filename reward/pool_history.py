"""Every group of a run in the order in which it was played, and where its signal leads.

The page shows the history and extrapolates it. Decisions within a night take the sums of it
(`reward.solve_rate.DrawSums`), which do not grow with the number of steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fieldkit.codec import bundle_groups
from fieldkit.files.sharded import stored
from fieldkit.records import Draw, Signal, StepSummary
from reward.group_signal import draw_of
from reward.solve_rate import DrawSums


@dataclass(frozen=True)
class PoolHistory:
    """Every group that was played."""

    steps: tuple[tuple[int, tuple[Draw, ...]], ...] = ()
    """(step, its groups) of each step whose groups are known, oldest first."""

    @property
    def sums(self) -> DrawSums:
        """What these groups leave for the next draw."""
        found = DrawSums()
        for step, draws in self.steps:
            found = found.plus(step, draws)
        return found

    @cached_property
    def by_task(self) -> dict[str, tuple[tuple[int, Signal], ...]]:
        """(step, signal) of each time a task was drawn, oldest first."""
        out: dict[str, list[tuple[int, Signal]]] = defaultdict(list)
        for step, draws in self.steps:
            seen = {signal: (step, signal) for signal in Signal}  # shared, as a step has hundreds
            for d in draws:
                out[d.task_id].append(seen[d.signal])
        return {task_id: tuple(found) for task_id, found in out.items()}


def read_history(steps: Iterable[StepSummary], bundle_of: Callable[[int], Path]) -> PoolHistory:
    """The history of a run's finished steps, by `draws_of` each."""
    found = ((s.step, draws_of(s, bundle_of)) for s in steps)
    return PoolHistory(tuple((step, draws) for step, draws in found if draws))


def draws_of(step: StepSummary, bundle_of: Callable[[int], Path]) -> tuple[Draw, ...]:
    """The groups of a finished step, from its summary.

    A summary of an older version does not have them, so its bundle is read; there are none where
    that is missing. Raises `BadInput` naming file and line.
    """
    if step.draws or step.bundle_sha is None or not stored(bundle := bundle_of(step.step)):
        return step.draws
    return tuple(map(draw_of, bundle_groups(bundle)))


BLOCK_GROUPS = 40
"""Neighbouring steps are taken together until they have so many groups: a pass of 42 tasks."""

RECENT_BLOCKS = 6
"""How many of the newest blocks a forecast takes: the fall of a share is a line in its logarithm
over a while, not over a whole night."""

FEWEST_BLOCKS = 3
"""With fewer points a line always fits."""

Z = 1.645
"""A slope counts as a fall if it is below 0 by so many standard errors: one-sided 95 %."""


@dataclass(frozen=True)
class Forecast:
    """The step at which the expected share of LEARNABLE groups reaches the bound if it goes on
    falling at its present rate. It decides nothing."""

    bound: float
    blocks: tuple[tuple[int, int, int], ...]
    """(last step, LEARNABLE groups, groups) of each block of steps, oldest first."""
    step: int | None = None
    """None if the share does not fall by more than chance, or too few groups were played."""
    latest: int | None = None
    """The same at the slowest fall that the groups allow (one-sided 95 %)."""

    @property
    def message(self) -> str:
        """One sentence for a person."""
        if self.step is not None:
            return (
                "If it goes on falling as it has, the share of groups that differ reaches"
                f" {100 * self.bound:.0f} % around step {self.step}, and by step {self.latest} at"
                " the slowest fall that the groups allow (95 %)."
            )
        if len(self.blocks) < FEWEST_BLOCKS:
            groups = FEWEST_BLOCKS * BLOCK_GROUPS
            return f"No forecast of the share yet: a line needs {groups} groups."
        return "The share of groups that differ does not fall by more than chance: no end in sight."


def forecast(history: PoolHistory, bound: float) -> Forecast:
    """Extrapolate the share of LEARNABLE groups as a straight line in its logarithm.

    A block of n groups with x LEARNABLE ones is the point log((x + ½)/(n + 1)), whose variance is
    about 1/(x + ½) − 1/(n + 1) (delta method), over the mean step of the block. The line is fitted
    by least squares, weighted by the inverse variances, so the slope has the variance
    1/Σ w (t − t̄)².
    """
    blocks = _blocks(history)
    recent = blocks[-RECENT_BLOCKS:]
    if len(recent) < FEWEST_BLOCKS:
        return Forecast(bound, blocks)
    begins = [blocks[-len(recent) - 1][0] if len(blocks) > len(recent) else 0]
    begins += [last for last, *_ in recent[:-1]]
    times = [(begin + 1 + last) / 2 for begin, (last, *_) in zip(begins, recent, strict=True)]
    logs = [math.log((x + 0.5) / (n + 1)) for _, x, n in recent]
    weights = [1 / (1 / (x + 0.5) - 1 / (n + 1)) for _, x, n in recent]
    total = sum(weights)
    t_mean = sum(w * t for w, t in zip(weights, times, strict=True)) / total
    y_mean = sum(w * y for w, y in zip(weights, logs, strict=True)) / total
    spread = sum(w * (t - t_mean) ** 2 for w, t in zip(weights, times, strict=True))
    slope = sum(w * (t - t_mean) * y for w, t, y in zip(weights, times, logs, strict=True)) / spread
    slowest = slope + Z / math.sqrt(spread)
    if slowest >= 0:
        return Forecast(bound, blocks)
    now = blocks[-1][0]
    step, latest = (
        max(now, math.ceil(t_mean + (math.log(bound) - y_mean) / s)) for s in (slope, slowest)
    )
    return Forecast(bound, blocks, step, latest)


def _blocks(history: PoolHistory) -> tuple[tuple[int, int, int], ...]:
    """Whole steps, joined until a block has `BLOCK_GROUPS` groups; a last part is left out."""
    found, learnable, groups = [], 0, 0
    for step, draws in history.steps:
        signals = [d.signal is Signal.LEARNABLE for d in draws]
        learnable, groups = learnable + sum(signals), groups + len(signals)
        if groups >= BLOCK_GROUPS:
            found.append((step, learnable, groups))
            learnable = groups = 0
    return tuple(found)
