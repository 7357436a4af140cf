"""Draws near the frontier: tasks that are neither always nor never solved come more often.

A group teaches the work where some of its K attempts pass and some do not. How probable that is
follows from what each task's earlier attempts did (`reward.solve_rate`); a task that has been drawn
never, or long ago, is as probable as the pool as a whole, so none is given up for good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fieldkit.records import Task
from reward.solve_rate import solve_rates
from rollout.draw.base import Drawing
from rollout.seeds import SEED_BITS, draw_seed

SHARPNESS = 8
"""A task's weight is its probability of a mixed group to this power. One pass over 42 tasks tells
little about each of them, so the probabilities lie close together: their eighth powers do not."""


def by_frontier(drawing: Drawing) -> list[Task]:
    """By chance, more often a task that the policy passes now and then.

    The tasks of a step are all different: drawn without replacement by weight.

    Of the keys log(u)/w with u uniform in (0, 1) the largest are taken (Efraimidis and Spirakis
    2006, algorithm A). u depends on run, step and task alone.
    """
    rates = solve_rates(drawing.history, [t.task_id for t in drawing.pool], drawing.step)

    def key(task: Task) -> float:
        drawn = draw_seed(drawing.run_seed, drawing.step, task.task_id)
        weight = rates[task.task_id].mixed(drawing.group_size) ** SHARPNESS
        return math.log((drawn + 0.5) / 2**SEED_BITS) / weight

    queues: dict[str, Iterator[Task]] = {
        env: iter(sorted(tasks, key=key, reverse=True)) for env, tasks in drawing.by_env.items()
    }
    return [next(queues[env]) for env in drawing.places()[-1]]
