"""What a name means that a person types behind `grpo env`: an environment of a run, a class, or one
of another style, which are checked and played in different ways.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.env_settings import EnvSettings, parse_passes
from rollout.envs.registry import ENVIRONMENTS
from rollout.envs.tool_world import row_of
from rollout.tasks import decode_tasks
from scripts.base.checkout import ROOT, from_checkout
from scripts.environments.freeze import row_tasks
from scripts.environments.order import Order, only_class, read_rows
from scripts.environments.own_env import evaluation_tasks, is_class, own_environment
from scripts.run.config import read_config
from scripts.run.folder import open_run


def envs_of(run: str) -> Mapping[str, EnvSettings]:
    """A run's own environments by name."""
    return read_config(open_run(run).config).envs


def env_of(run: str, name: str) -> EnvSettings:
    """One of them. Raises `BadInput`."""
    own = envs_of(run)
    if name not in own:
        known = ", ".join(own) or "none"
        raise BadInput(f"{run}: there is no [envs.{name}] in run.toml; known: {known}")
    return own[name]


def order_of(
    name: str,
    run: str | None,
    rows: Path | None = None,
    passes: str = "",
    ends: str = "",
    n: int = 0,
) -> Order:
    """The class or the functions that a command has to play, with the rows of a file, or up to `n`
    of the run's pool. Raises `BadInput`."""
    given: dict[str, Any] = {"rows": read_rows(rows)} if rows else {}
    if run:
        s = env_of(run, name)
        if n and rows is None and (own := _of_pool(run, name)[:n]):
            given["rows"] = [row_of(task) for task in own]
        given |= {"config": s.config, "rewards": s.rewards, "oracle": s.oracle}
        given["call_seconds"] = s.call_seconds
        return Order(s.use, str(ROOT), passes=passes or s.passes, ends=ends or s.ends, **given)
    if passes:
        try:
            parse_passes(passes)
        except BadInput:
            raise BadInput(
                f"--passes {passes!r} compares no part of the reward with a number; write for"
                ' example `--passes "reward >= 1"`'
            ) from None
    if name in ENVIRONMENTS:
        raise BadInput(
            f"{name}: this environment is a world of its own, not a class with tools;"
            " `grpo tasks check FILE --play` plays its tasks"
        )
    if name.endswith(".py"):
        name = f"{name}:{only_class(Path(name))}"
    if ":" not in name:
        raise BadInput(
            f"{name!r} is no file, no module:Class and no registered environment"
            f" ({', '.join(ENVIRONMENTS)}); `grpo env new {shlex.quote(name)}` makes one"
        )
    return Order(name, str(Path.cwd()), passes=passes, ends=ends, **given)


def other_style(
    name: str, run: str | None, typed: Mapping[str, str], again: str, say: Callable[[str], None]
) -> tuple[str, EnvSettings] | None:
    """The name and the settings of an environment that is no class; None for a class, and for a
    name that a run has not. typed: keys of `[envs.NAME]`, which come before those of a run; ""
    where none was typed. again, say: as `own_environment`'s. Raises `BadInput`."""
    given: dict[str, Any] = {key: value for key, value in typed.items() if value}
    if run:
        own = envs_of(run).get(name)
        if own is None:
            return None
        if own.style != "trl":
            return name, replace(own, **given)
        if "python" in given:
            raise BadInput(f"--python: {name} of {run} is a class, which needs no other")
        return None
    if is_class(name, typed["python"]):
        return None
    found = own_environment(name, "", given, again, say)
    return found.name, found.settings


def tasks_of(
    name: str, settings: EnvSettings, run: str | None, rows: Path | None, n: int
) -> list[Task]:
    """Up to `n` tasks to check with: the rows of a file, those of the run's pool, or new ones."""
    if rows is not None:
        return row_tasks(name, read_rows(rows)[:n], str(rows))
    own = _of_pool(run, name)[:n] if run else []
    return own or evaluation_tasks(name, settings, ROOT, n)


def one_task(name: str, settings: EnvSettings, rows: Path | None, seed: int) -> Task:
    """A task to play: the first row of a file, or one made with the seed."""
    if rows is None:
        return evaluation_tasks(name, settings, ROOT, 1, seed)[0]
    return row_tasks(name, read_rows(rows)[:1], str(rows))[0]


def _of_pool(run: str, name: str) -> list[Task]:
    """An environment's tasks in the run's pool; none if there is no pool yet."""
    pool = from_checkout(read_config(open_run(run).config).data.pool)
    return [t for t in decode_tasks(pool) if t.env == name] if pool.is_file() else []
