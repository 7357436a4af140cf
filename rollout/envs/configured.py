"""The environments of a run, `[envs.NAME]`, in the registry of all.

Their code is loaded on first use, so that a command that only reads a run does not import it. Their
tasks are rows of a dataset: two tasks are different if their rows are.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_text
from fieldkit.records import Task
from rollout.envs.base import Environment, MissingOracle
from rollout.envs.env_settings import ENV_STYLES, EnvSettings
from rollout.envs.reward_functions import group_rewards
from rollout.envs.tool_calls import Schema
from rollout.envs.tool_world import row_of
from rollout.envs.tool_yardsticks import drawn_replies, oracle_replies
from rollout.envs.user_code import identity

_ours: dict[str, tuple[EnvSettings, Path]] = {}


def register_environments(settings: Mapping[str, EnvSettings], root: Path) -> None:
    """Register the environments of a run by name, in place of those of an earlier run.

    root: the folder of relative paths. Raises `BadInput` for a name that is taken.
    """
    wanted = {name: (asked, root) for name, asked in settings.items()}
    if wanted == _ours:  # most runs have none, and most commands need no world
        return
    from rollout.envs.registry import ENVIRONMENTS

    for name in [n for n, known in _ours.items() if known != wanted.get(n)]:
        ENVIRONMENTS.remove(name)
        del _ours[name]
    for name in [n for n in wanted if n not in _ours]:
        if name in ENVIRONMENTS:
            raise BadInput(f"envs.{name}: the environment {name!r} is there already; rename yours")
        ENVIRONMENTS.register(name, environment(name, *wanted[name]))
        _ours[name] = wanted[name]


def oracle_of(name: str) -> str:
    """The function that `oracle` names for an environment of a run; empty for any other one."""
    return _ours[name][0].oracle if name in _ours else ""


def environment(name: str, settings: EnvSettings, root: Path) -> Environment:
    """What `[envs.NAME]` describes. Whatever is wrong with its code is `BadInput` on first use."""

    @functools.cache
    def made() -> Environment:
        return ENV_STYLES.named(settings.style).environment(name, settings, root)

    def by_chance(task: Task, shown: str, rng: random.Random) -> str:
        own = made().random_reply
        if own is None:
            raise BadInput(
                f"{where}: style {settings.style!r} shows its tools when an episode begins, so no"
                f" call can be drawn before; give a function in {where}.chance"
            )
        return own(task, shown, rng)

    def no_oracle(task: Task) -> Sequence[str]:
        raise MissingOracle(
            f'task {task.task_id}: [{where}] names no oracle; `oracle = "mine.py:solution"` names a'
            " function of a row's columns that returns the calls that solve it, as [(tool,"
            " {arguments})]"
        )

    def tools(task: Task) -> Sequence[Schema]:
        return made().tools(task)

    where = f"envs.{name}"
    oracle, chance = settings.oracle, settings.chance
    last = "" if settings.fallback else "Done."  # any other text would be a call of the fallback
    return Environment(
        make=lambda site: made().make(site),
        faults=lambda task, where: made().faults(task, where),
        tools=tools,
        oracle=(
            oracle_replies(oracle, root, f"{where}.oracle", last, tools) if oracle else no_oracle
        ),
        random_reply=drawn_replies(chance, root, f"{where}.chance", tools) if chance else by_chance,
        published=lambda line: published_row(line, name),
        marks=lambda task: [("row", json.dumps(row_of(task), sort_keys=True))],
        from_rows=True,
        of_group=group_rewards(name, settings, root),
        capacity=lambda site, task, wanted: made().capacity(site, task, wanted),
    )


def environment_hashes(settings: Mapping[str, EnvSettings], root: Path) -> dict[str, str]:
    """A hash of the code of each environment, by name. Another hash means another environment."""
    return {name: _hash(name, asked, root) for name, asked in settings.items()}


def _hash(name: str, asked: EnvSettings, root: Path) -> str:
    own = ENV_STYLES.named(asked.style).code_hash(name, asked, root)
    where = f"envs.{name}.group_rewards"
    more = [identity(use, root, where) for use in asked.group_rewards]
    return sha256_text("\n".join([own, *more])) if more else own


def is_task(line: Mapping[str, Any]) -> bool:
    """Whether a line of a file is a task, and no row of a dataset."""
    return {"task_id", "env", "info"} <= line.keys()


def published_row(line: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A row of a dataset, which names its environment in the column `environment`, as a task."""
    if line.get("environment") != name or is_task(line):
        return None
    return row_fields(line, name)


def row_fields(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A row with that column as the fields of a `Task`."""
    sha = sha256_text(json.dumps(line, sort_keys=True))[:16]
    info = {key: value for key, value in line.items() if key != "environment"}  # as in TRL
    prompt = line.get("prompt", "")
    if isinstance(prompt, str):
        info.pop("prompt", None)
    else:  # messages: the row keeps them, and the task shows the last
        last = prompt[-1] if isinstance(prompt, list) and prompt else {}
        prompt = str(last.get("content", "")) if isinstance(last, dict) else ""
    return {"task_id": f"{name}-{sha}", "env": name, "prompt": prompt, "info": info}
