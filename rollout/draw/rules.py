"""The rules by which a step's tasks are drawn, by name. Add one with a function and one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

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
    """By task id, the probability that a place of the coming step goes to the task.

    A step draws B different tasks, so none can have more than one of its B places, however large
    its weight. Drawn as `by_frontier` does, a task of weight w is among the first B with
    probability 1 − exp(−w·τ) nearly, where τ is chosen so that these add up to B (Rosén 1997,
    "Asymptotic theory for order sampling"). Spare places are left out.
    """
    weights = WEIGHTS[rule](drawing) if rule in WEIGHTS else {}
    found: dict[str, float] = {}
    for env, tasks in drawing.by_env.items():
        of_env = {t.task_id: weights.get(t.task_id, 1.0) for t in tasks}
        places = drawing.mix.get(env, 1.0) / (sum(drawing.mix.values()) or 1.0) * drawing.batch
        found |= dict(zip(of_env, _inclusion([*of_env.values()], places), strict=True))
    total = sum(found.values())
    return {task: chance / total for task, chance in found.items()}


def _inclusion(weights: Sequence[float], places: float) -> list[float]:
    """1 − exp(−w·τ) of each weight, all above 0, which add up to `places`; 1 where there are no
    fewer places than weights."""
    if places >= len(weights):
        return [1.0] * len(weights)
    tau, missing = 0.0, places
    # Newton's method: the sum is concave in τ, so each step stays below the solution.
    while missing > 1e-9 * places:
        tau += missing / sum(w * math.exp(-w * tau) for w in weights)
        missing = places + sum(math.expm1(-w * tau) for w in weights)
    return [-math.expm1(-w * tau) for w in weights]
