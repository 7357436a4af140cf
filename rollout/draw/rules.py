"""The rules by which a step's tasks are drawn, by name. Add one with a function and one line."""

from __future__ import annotations

from collections.abc import Callable

from fieldkit.records import Task
from fieldkit.registry import Registry
from rollout.draw.base import Drawing
from rollout.draw.epochs import by_epochs
from rollout.draw.frontier import by_frontier

DRAWS: Registry[Callable[[Drawing], list[Task]]] = Registry("draw")
"""A rule gives B + spare different tasks in the order of their places (`Drawing.places`), with
fewer spare tasks where the pool has no more. It may depend only on the drawing. The first tasks
must not depend on how many spare ones are asked for, because how many an earlier step used is not
known then."""

DRAWS.register("uniform", by_epochs)
DRAWS.register("frontier", by_frontier)
