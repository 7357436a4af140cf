"""Several environments in one run: each has a share of the places in a step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fieldkit.errors import BadInput
from fieldkit.records import Task

CHECKED_STEPS = 1000
"""Steps that `check_mix` looks at. Shares in hundredths repeat after at most 100 steps."""

ANY = ""
"""The environment of every place if there is no mix."""


def check_mix(pool: Sequence[Task], batch: int, mix: Mapping[str, float]) -> None:
    """Raise `BadInput` if the pool cannot supply the mix: an environment has no task or no share,
    or fewer tasks than a step may need."""
    tasks, envs = by_env(pool, mix), places(mix)
    for _ in range(CHECKED_STEPS):
        require(Counter(itertools.islice(envs, batch)), tasks)


def by_env(pool: Sequence[Task], mix: Mapping[str, float]) -> dict[str, list[Task]]:
    """The pool's tasks by the environment whose places they may have. Raises `BadInput` for a task
    whose environment has no share."""
    if not mix:
        return {ANY: list(pool)}
    found: dict[str, list[Task]] = {env: [] for env in mix}
    for task in pool:
        if task.env not in found:
            raise BadInput(
                f"data.mix: task {task.task_id} of the pool is of env {task.env!r}, which has no"
                " share, so it would never be played; give the env a share, or take its tasks out"
            )
        found[task.env].append(task)
    return found


def require(wanted: Mapping[str, int], tasks: Mapping[str, Sequence[Task]]) -> None:
    """Raise `BadInput` if one step's places need more different tasks than there are."""
    for env, n in wanted.items():
        if n > len(tasks[env]):
            raise BadInput(
                f"data.mix: a step or the preflight plays up to {n} different tasks of env"
                f" {env!r}, but the pool has {len(tasks[env])}; lower its share or"
                " rollout.tasks_per_step, or grow the pool"
            )


def places(mix: Mapping[str, float]) -> Iterator[str]:
    """The environment of every place of a run, in order: each time the one furthest behind its
    share, and of equals the one named first."""
    if not mix:
        yield from itertools.repeat(ANY)
    total = sum(mix.values())
    given = dict.fromkeys(mix, 0)
    for n in itertools.count(1):
        # Rounded, so that equal shares stay equal whatever the last bit of a quotient is.
        env = max(mix, key=lambda e: round(n * mix[e] / total - given[e], 9))
        given[env] += 1
        yield env
