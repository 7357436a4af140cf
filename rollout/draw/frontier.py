"""Draws near the frontier: tasks that are sometimes solved are drawn more often.

A group teaches the work only if some of its K attempts pass and some fail. The probability of that
is estimated from each task's earlier attempts (`reward.solve_rate`). For a task that was never
drawn, or not for a long time, it is the probability over the whole pool, so no task is given up for
good. Tasks that are added to a pool come soon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fieldkit.records import Task
from reward.solve_rate import SolveRate, solve_rates
from rollout.draw.base import Drawing
from rollout.seeds import SEED_BITS, draw_seed

SHARPNESS = 8
"""A task's weight is its probability of a mixed group to this power. One pass over 42 tasks says
little about each of them, so the probabilities are close together; their eighth powers are further
apart."""

_UNKNOWN = SolveRate(1, 1)
"""Of a task that was added to the pool and not drawn yet: the others, which had nothing left to
teach, say nothing about it."""


def by_frontier(drawing: Drawing) -> list[Task]:
    """At random, with more weight on a task that the policy passes some of the time.

    The tasks of a step are drawn by weight without replacement, so they are all different.

    The tasks with the largest keys log(u)/w are taken, u uniform in (0, 1) (Efraimidis and Spirakis
    2006, algorithm A). u depends only on run, step and task.
    """
    weights = frontier_weights(drawing)

    def key(task: Task) -> float:
        drawn = draw_seed(drawing.run_seed, drawing.step, task.task_id)
        return math.log((drawn + 0.5) / 2**SEED_BITS) / weights[task.task_id]

    queues: dict[str, Iterator[Task]] = {
        env: iter(sorted(tasks, key=key, reverse=True)) for env, tasks in drawing.by_env.items()
    }
    return [next(queues[env]) for env in drawing.places()[-1]]


def frontier_weights(drawing: Drawing) -> dict[str, float]:
    """The weight of every task of the pool in the draw, by task id."""
    rates = solve_rates(drawing.sums, [t.task_id for t in drawing.pool], drawing.step)
    rates |= dict.fromkeys(drawing.joined.keys() - drawing.sums.attempts.keys(), _UNKNOWN)
    return {task: rate.mixed(drawing.group_size) ** SHARPNESS for task, rate in rates.items()}
