"""What each part of the reward pays to whom: the oracle, doing nothing, chance, and chance that
never answers.

It plays the class itself, without a loop, so that the table needs neither a model nor a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import fmean

from fieldkit.records import Task
from rollout.envs.sql.sql_env import SqlEnv
from rollout.envs.sql.sql_rewards import (
    Record,
    correctness_of,
    operational_of,
    progress_of,
    published_operational_of,
    published_progress_of,
)
from rollout.envs.sql.sql_yardsticks import Call, chance, oracle

Choose = Callable[[Task, str, random.Random], Call | None]
"""The next call, from all that was shown so far; None: the policy stops."""


def _by_chance(task: Task, shown: str, rng: random.Random) -> Call:
    return chance(rng, shown, **task.info)


def _never_answering(task: Task, shown: str, rng: random.Random) -> Call:
    while (call := _by_chance(task, shown, rng))[0] == "answer":
        pass
    return call


def record_of(task: Task, choose: Choose) -> Record:
    """One episode: what it left."""
    env, rng = SqlEnv(), random.Random(task.task_id)
    shown = env.reset(**task.info)
    while not env.done and (call := choose(task, shown, rng)) is not None:
        tool, arguments = call
        shown += "\n" + getattr(env, tool)(**arguments)
    return env.record


def oracle_record(task: Task) -> Record:
    """The oracle's episode."""
    calls = iter(oracle(**task.info))
    return record_of(task, lambda *_: next(calls, None))


POLICIES: dict[str, Callable[[Task], Record]] = {
    "doing nothing": lambda task: record_of(task, lambda *_: None),
    "chance": lambda task: record_of(task, _by_chance),
    "chance, never answers": lambda task: record_of(task, _never_answering),
    "oracle": oracle_record,
}
PARTS: dict[str, Callable[[Record], float]] = {
    "correctness": correctness_of,
    "progress": progress_of,
    "operational": operational_of,
    "published progress": published_progress_of,
    "published operational": published_operational_of,
}


def worth_table(tasks: Sequence[Task]) -> str:
    """A Markdown table: the mean of each part over the tasks, a row a policy."""
    lines = [
        f"| policy | {' | '.join(PARTS)} |",
        f"|---|{'---:|' * len(PARTS)}",
    ]
    for name, play in POLICIES.items():
        records = [play(task) for task in tasks]
        means = (fmean(map(part, records)) for part in PARTS.values())
        lines.append(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return "\n".join(lines)
