"""Plays yardsticks in a run's own environments, to see what their reward pays.

Nothing is trained and nothing is kept.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import Task, Trajectory
from rollout.envs.base import MissingOracle
from rollout.transcript import ChatRenderer
from rollout.yardsticks import DO_NOTHING, ORACLE, RANDOM
from scripts.base.display import Progress
from scripts.prepare.task_sets import play_yardstick
from scripts.run.config import RunConfig

TASKS = 24
"""The number of tasks played in each environment, from the beginning of the pool."""


@dataclass(frozen=True)
class Worth:
    """What was played in one environment."""

    env: str
    tasks: tuple[Task, ...]
    played: Mapping[str, Sequence[Trajectory]]
    """A yardstick's name → an episode of each task."""
    absent: Mapping[str, str]
    """A yardstick's name → why it could not be played."""


def play_worth(
    config: RunConfig,
    tasks: Sequence[Task],
    load: Callable[[], ChatRenderer],
    scratch: Path,
    progress: Progress,
) -> list[Worth]:
    """One for each environment of `config` that has tasks here, played under the run's limits.
    load: gives the tokenizer, which the random policy needs. Raises as playing does.
    """
    found = []
    play = functools.partial(play_yardstick, under=config, load=load)
    with asyncio.Runner() as runner:
        for env in config.envs:
            own = tuple(task for task in tasks if task.env == env)[:TASKS]
            if not own:
                continue
            played, absent = {}, {}
            for name in (DO_NOTHING, RANDOM, ORACLE):
                try:
                    played[name] = play(name, own, scratch, name, progress, run=runner.run)
                except (BadInput, MissingOracle) as e:
                    if name == DO_NOTHING:
                        raise
                    absent[name] = str(e)
            found.append(Worth(env, own, played, absent))
    return found
