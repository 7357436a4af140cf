"""Which tasks pass, and which assertions hold, by chance of the sampling.

Needs several attempts of one policy at each task. A task that passes in some of them and not in
others is noise in a table of single attempts; one that never passes is a failure, or beyond the
policy. The statistics of `matched` speak of other tasks; these speak of the same tasks, sampled
again. This module only counts; it plays nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.eval.passk import mean_pass_at_k
from fieldkit.eval.stats import Estimate, wilson


class Held(StrEnum):
    """In how many attempts something held."""

    ALWAYS = "always"
    NEVER = "never"
    BY_CHANCE = "by chance"
    """In some."""


def _held(count: int, n: int) -> Held:
    return {0: Held.NEVER, n: Held.ALWAYS}.get(count, Held.BY_CHANCE)


@dataclass(frozen=True)
class AssertionNoise:
    """One assertion of a task, and in how many of the task's `n` attempts it held."""

    kind: str
    path: str
    count: int
    n: int

    @property
    def held(self) -> Held:
        return _held(self.count, self.n)


@dataclass(frozen=True)
class TaskNoise:
    """One task, and in how many of its `n` attempts it passed."""

    task_id: str
    passed: int
    n: int
    assertions: tuple[AssertionNoise, ...]
    """In declaration order."""

    @property
    def rate(self) -> float:
        """The share of its attempts that passed."""
        return self.passed / self.n

    @property
    def held(self) -> Held:
        return _held(self.passed, self.n)


@dataclass(frozen=True)
class Noise:
    """The noise of a set of tasks, each attempted `n` times or more."""

    n: int
    tasks: tuple[TaskNoise, ...]
    expected: float
    """Tasks that pass at one attempt each, in expectation: Σ p̂, p̂ the share of passes of a task."""
    sd: float
    """The standard deviation of that number from the sampling alone: the root of Σ p(1 − p), the
    variance of independent draws, with a task's p(1 − p) estimated without bias from its n attempts
    as p̂(1 − p̂)·n/(n − 1)."""
    ceiling: Estimate
    """pass@n: the share of tasks that some of n attempts passes, with an interval over tasks."""
    unseen: float
    """The rate that a task which never passed may still have: the upper end of the 95 % interval of
    0 of n."""

    def of(self, held: Held) -> tuple[TaskNoise, ...]:
        """The tasks that pass always, never or by chance."""
        return tuple(t for t in self.tasks if t.held is held)

    def assertions(self, held: Held) -> int:
        """How many assertions hold always, never or by chance."""
        return sum(a.held is held for t in self.tasks for a in t.assertions)


def task_noise(attempts: Mapping[str, Sequence[Grade]]) -> Noise:
    """Count by task over its attempts' grades.

    Raises `BadInput` where there is no task, where one has fewer than two attempts, and where the
    attempts at a task were graded by different assertions.
    """
    if not attempts:
        raise BadInput("there is no task")
    for task_id, grades in attempts.items():
        if len(grades) < 2:
            raise BadInput(f"task {task_id}: noise needs two attempts, there are {len(grades)}")
    n = min(map(len, attempts.values()))
    tasks = tuple(_task(task_id, grades) for task_id, grades in attempts.items())
    unseen = wilson(0, n).interval
    assert unseen is not None
    return Noise(
        n=n,
        tasks=tasks,
        expected=math.fsum(t.rate for t in tasks),
        sd=math.sqrt(math.fsum(t.rate * (1 - t.rate) * t.n / (t.n - 1) for t in tasks)),
        ceiling=mean_pass_at_k({t: [g.passed for g in gs] for t, gs in attempts.items()}, n),
        unseen=unseen.high,
    )


def _task(task_id: str, grades: Sequence[Grade]) -> TaskNoise:
    asked = [[(r.kind, r.path) for r in grade.results] for grade in grades]
    if any(other != asked[0] for other in asked):
        raise BadInput(f"task {task_id}: its attempts were graded by different assertions")
    columns = zip(*(grade.results for grade in grades), strict=True)
    n = len(grades)
    return TaskNoise(
        task_id,
        sum(grade.passed for grade in grades),
        n,
        tuple(
            AssertionNoise(kind, path, sum(r.passed for r in column), n)
            for (kind, path), column in zip(asked[0], columns, strict=True)
        ),
    )
