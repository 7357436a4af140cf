"""The registry of environments: one line a world.

A task names its environment in `env`. All other code looks it up here.
"""

from __future__ import annotations

from fieldkit.errors import BadInput
from fieldkit.records import Task
from fieldkit.registry import Registry
from rollout.envs.base import Environment, Opening, Site, World
from rollout.envs.shell import SHELL, SHELL_ENV

ENVIRONMENTS: Registry[Environment] = Registry("env")
"""By the names that tasks give in `env`."""
ENVIRONMENTS.register(SHELL_ENV, SHELL)


def environment_of(task: Task) -> Environment:
    """The task's environment. Raises `BadInput` naming the known ones and the nearest."""
    return ENVIRONMENTS.named(task.env)


def make_world(task: Task, site: Site) -> World:
    """A new world for one episode of `task`. Raises as `environment_of` and `Environment.make`."""
    return environment_of(task).make(site)


def opening_of(task: Task) -> Opening:
    """What an episode of `task` begins with. Raises `BadInput` if only a reset world has it."""
    tell = environment_of(task).opening
    if tell is None:
        raise BadInput(
            f"task {task.task_id}: the opening of env {task.env!r} is not known before it is played"
        )
    return tell(task)
