"""The rules by which a step's tasks are drawn, by name. Add one with a function and one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fieldkit.records import Task
from fieldkit.registry import Registry
from rollout.draw.base import Drawing
from rollout.draw.epochs import by_epochs
from rollout.draw.frontier import by_frontier, frontier_weights

DRAWS: Registry[Callable[[Drawing], list[Task]]] = Registry("draw")
"""A rule gives B + spare different tasks in the order of their places (`Drawing.places`), with
fewer spare tasks where the pool has no more. It may depend only on the drawing. The first tasks
must not depend on how many spare ones are asked for, because how many an earlier step used is not
known then."""

DRAWS.register("uniform", by_epochs)
DRAWS.register("frontier", by_frontier)

WEIGHTS: Registry[Callable[[Drawing], Mapping[str, float]]] = Registry("weights of a draw")
"""By the rule's name, how much more often it draws one task than another. A rule that is not here
draws them all as often."""

WEIGHTS.register("frontier", frontier_weights)


def chances(rule: str, drawing: Drawing) -> dict[str, float]:
    """By task id, the probability that a place of the coming steps goes to the task."""
    weights = WEIGHTS[rule](drawing) if rule in WEIGHTS else {}
    found: dict[str, float] = {}
    for env, tasks in drawing.by_env.items():
        of_env = {t.task_id: weights.get(t.task_id, 1.0) for t in tasks}
        share, total = drawing.mix.get(env, 1.0), sum(of_env.values())
        found |= {task: share * weight / total for task, weight in of_env.items()}
    total = sum(found.values())
    return {task: chance / total for task, chance in found.items()}
