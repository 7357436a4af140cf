"""The inputs of a draw of tasks: the run's seed, the pool, and what earlier steps drew.

A draw gives one step's tasks in the order of their places. The first B are always played. The spare
tasks after them are played only in place of a group whose attempts all pass or all fail
(`rollout.resample`). Where environments are mixed, each place is first given to an environment, and
then a task of that environment is chosen for it. A rule of `rollout.draw.rules` decides which task
gets which place.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fieldkit.errors import BadInput
from fieldkit.records import Task
from reward.solve_rate import DrawSums
from rollout.draw.mix import by_env, places, require


@dataclass(frozen=True)
class Drawing:
    """One step's draw.

    step: from 1. batch: B. spare: how many more tasks may be played. mix: the share of each
    environment; empty: any task may have any place. sums: of what earlier steps drew; a step that
    they do not contain drew B tasks. joined: by task id the step after which a task was added to
    the pool, of those that the run did not begin with.
    """

    run_seed: int
    step: int
    pool: Sequence[Task]
    batch: int
    spare: int = 0
    group_size: int = 4
    mix: Mapping[str, float] = field(default_factory=dict)
    sums: DrawSums = field(default_factory=DrawSums)
    joined: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"training steps count from 1, found {self.step}")
        if not self.pool:
            raise BadInput("the pool is empty: there is no task to play")
        if self.batch > len(self.pool):
            raise BadInput(
                f"rollout.tasks_per_step: {self.batch} different tasks a step, but the pool has"
                f" only {len(self.pool)}; lower it or grow the pool"
            )

    @property
    def grew_after(self) -> int:
        """The step after which tasks were last added; 0: never."""
        return max(self.joined.values(), default=0)

    @property
    def by_env(self) -> dict[str, list[Task]]:
        """As `rollout.draw.mix.by_env`."""
        return by_env(self.pool, self.mix)

    def places(self) -> list[list[str]]:
        """The environment of each place, one list a step: first the places that earlier steps drew,
        last those of this step. The last list includes spare places while there are different tasks
        for them.

        Raises `BadInput` where an environment has too few tasks for the batch.
        """
        envs, drew = places(self.mix), self.sums.groups(self.step - 1)
        past = [list(itertools.islice(envs, n or self.batch)) for n in drew]
        batch = list(itertools.islice(envs, self.batch))
        tasks, taken = self.by_env, Counter(batch)
        require(taken, tasks)
        return [*past, [*batch, *self._spare(envs, tasks, taken)]]

    def _spare(
        self, envs: Iterator[str], tasks: Mapping[str, Sequence[Task]], taken: Counter[str]
    ) -> Iterator[str]:
        for env in itertools.islice(envs, self.spare):
            if taken[env] == len(tasks[env]):
                return
            taken[env] += 1
            yield env
