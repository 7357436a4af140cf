"""An environment that a person names by its code or its address, with no run yet.

It becomes what `[envs.NAME]` of a run.toml would say, and gets tasks: rows of its own datasets
where it has them, else rows that differ by their seed alone, because `reset()` brings the prompt.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.env_settings import EnvSettings
from rollout.envs.registry import ENVIRONMENTS
from scripts.environments.foreign_venv import add_environment, requires_verifiers
from scripts.environments.freeze import dataset_tasks, seed_tasks
from scripts.environments.order import only_class

POOL_ROWS, HELDOUT_ROWS = 256, 48
"""How many tasks a new run gets: more than 27 minutes draw, and as many as a night evaluates."""

HELDOUT_SEED = 100_000
"""Of the first held-out task; seeds to train on begin at 0, so no task is in both."""

_ADDRESS = ("http://", "https://")
_APP = "app"
"""The name of a server's app where none was typed."""


@dataclass(frozen=True)
class OwnEnv:
    """An environment's name and the keys of its `[envs.NAME]`."""

    name: str
    values: Mapping[str, Any]

    @property
    def settings(self) -> EnvSettings:
        """The same, checked. Raises `BadInput`."""
        return EnvSettings(**{"use": "", **self.values})


def own_environment(
    typed: str,
    as_: str,
    given: Mapping[str, str],
    again: str,
    say: Callable[[str], None] = lambda line: None,
) -> OwnEnv:
    """What a file, a class or an address means; the virtual environment of a verifiers file is made
    where it is missing.

    as_: the name that tasks give; empty: one made of the class's or file's. given: keys of
    `[envs.NAME]` that were typed. again: the command that also says `passes`. Raises `BadInput`.
    """
    if typed in ENVIRONMENTS:
        raise BadInput(
            f"{typed}: this environment is part of the project; `grpo eval --endpoint URL --tasks"
            " FILE` plays its tasks"
        )
    address, served = typed.startswith(_ADDRESS), "python" in given
    if not address and ":" not in typed and not typed.endswith(".py") and not _is_verifiers(typed):
        raise BadInput(
            f"{typed!r} is no file, no module:Class, no address and no environment of a preset; for"
            f" an environment of a run add `--run RUN`, and `grpo env add {typed}` makes one of a"
            " package ready for run.toml"
        )
    if "passes" not in given:
        raise BadInput(f"{typed}: say which part of the reward means passed, as in `{again}`")
    if address:
        return OwnEnv(as_ or "server", {"style": "openenv", "url": typed, **given})
    home, _, kind = typed.rpartition(":") if ":" in typed else (typed, "", "")
    if served:
        app = f"{from_anywhere(home)}:{kind or _APP}"
        python = str(Path(given["python"]).absolute())  # a link of a virtual environment stays
        called = Path(home).stem if home.endswith(".py") else home.rpartition(".")[2]
        return OwnEnv(as_ or called, {"style": "openenv", "serve": app, **given, "python": python})
    if not kind and _is_verifiers(home):
        made = add_environment(home, (), say)
        where = {"style": "verifiers", "use": made.use, "python": str(made.python)}
        return OwnEnv(as_ or made.name, {**where, **given})
    kind = kind or only_class(Path(home))
    return OwnEnv(as_ or kind.lower(), {"use": f"{from_anywhere(home)}:{kind}", **given})


def from_anywhere(home: str) -> str:
    """A file's absolute path, because paths of run.toml start at the checkout; a module as it
    is."""
    return str(Path(home).resolve()) if home.endswith(".py") else home


def is_class(typed: str, python: str = "") -> bool:
    """Whether what was typed means a class, and not a server or a verifiers environment. python: of
    the server's virtual environment."""
    return not python and not typed.startswith(_ADDRESS) and not _is_verifiers(typed)


def _is_verifiers(typed: str) -> bool:
    """Whether a file or a folder is a verifiers environment: the file has `load_environment` (v0),
    or its inline metadata or the folder's pyproject.toml require the library. A file that cannot be
    read is none."""
    path = Path(typed)
    if path.is_dir():
        return requires_verifiers(path)
    if path.suffix != ".py":
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError):  # told of where its class is looked for
        return False
    named = any(getattr(node, "name", "") == "load_environment" for node in tree.body)
    return named or requires_verifiers(path)


def evaluation_tasks(
    name: str, settings: EnvSettings, root: Path, n: int, seed: int = 0
) -> list[Task]:
    """`n` tasks to evaluate on. root: the folder that paths start at. seed: of the first task, or
    of the order of a dataset. Raises as `dataset_tasks`."""
    if settings.style == "verifiers":
        return dataset_tasks(name, settings, root, "eval", n, seed)
    return seed_tasks(name, n, seed)


def run_tasks(name: str, settings: EnvSettings, root: Path) -> tuple[list[Task], list[Task]]:
    """Tasks to train on and held-out ones for a new run, none in both.

    Raises as `dataset_tasks`, and `BadInput` for a dataset that has too few rows for both.
    """
    if settings.style != "verifiers":
        return (
            seed_tasks(name, POOL_ROWS, 0),
            seed_tasks(name, HELDOUT_ROWS, HELDOUT_SEED),
        )
    heldout = dataset_tasks(name, settings, root, "eval", HELDOUT_ROWS, 0)
    known = {task.task_id for task in heldout}  # one dataset may serve as both
    rows = dataset_tasks(name, settings, root, "train", POOL_ROWS + HELDOUT_ROWS, 0)
    pool = [task for task in rows if task.task_id not in known][:POOL_ROWS]
    if not pool:
        raise BadInput(
            f"envs.{name}: its dataset has {len(rows)} rows, and {len(heldout)} are held out; give"
            " load_environment a larger dataset, or an eval_dataset of its own"
        )
    return pool, heldout
