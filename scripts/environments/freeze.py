"""`grpo env tasks`: an environment's rows as a task file that never changes.

A row of a dataset becomes one task. Without data, because `reset()` gives the prompt, tasks differ
only in their seed, which is a column of the row and part of the task's id. The generators are
seeded by the id, so a task is the same wherever it is played.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldkit.codec import encode, from_plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_text
from fieldkit.records import Task
from rollout.envs.configured import published_row
from rollout.envs.env_settings import EnvSettings
from rollout.envs.foreign.verifiers_world import dataset_rows
from scripts.environments.contract import Level, broken_promises

DIGITS = 6
"""Digits of a seed in an id, so that ids sort by seed."""


def seed_tasks(name: str, n: int, seed: int) -> list[Task]:
    """`n` tasks of the environment `name` that differ by seed, the first of which is `seed`."""
    return [Task(f"{name}-{s:0{DIGITS}d}", name, "", {"seed": s}) for s in range(seed, seed + n)]


def row_tasks(name: str, rows: Sequence[dict[str, Any]], where: str) -> list[Task]:
    """The rows as tasks. Raises `BadInput` that begins with `where` for a row that is there twice
    or has a column that a task has."""
    tasks: dict[str, Task] = {}
    for number, row in enumerate(rows, 1):
        fields = published_row({**row, "environment": name}, name)
        if fields is None:
            raise BadInput(f"{where}:{number}: a row has no column task_id; rename it")
        task = from_plain(Task, fields, f"{where}:{number}")
        if task.task_id in tasks:
            raise BadInput(f"{where}:{number}: this row is there twice; remove one of them")
        tasks[task.task_id] = task
    return list(tasks.values())


def dataset_tasks(
    name: str, settings: EnvSettings, root: Path, split: str, n: int, seed: int
) -> list[Task]:
    """`n` rows of a verifiers environment's own dataset as tasks. Raises as `dataset_rows`."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = dataset_rows(name, settings, root, split, n, seed, Path(scratch))
    return row_tasks(name, rows, f"envs.{name}, {split}")


def write_tasks(
    kind: type | None, tasks: Sequence[Task], out: Path, *, force: bool, again: str
) -> None:
    """Write the tasks to `out`, once it is sure that the class takes their rows.

    kind: None where the rows are the environment's own. again: the command that replaces a file.
    Raises `BadInput`, with nothing written.
    """
    if out.exists() and not (force and out.is_file()):
        raise BadInput(f"{out}: it exists already; `{again}` replaces it")
    if kind is not None:
        require_taken(kind, tasks[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, "".join(encode(task) + "\n" for task in tasks))


def require_taken(kind: type, task: Task) -> None:
    """Raise `BadInput` where the class does not keep the contract, or not take the task's row."""
    row = {"prompt": task.prompt, **task.info}
    errors = [f for f in broken_promises(kind, row) if f.level is Level.ERROR]
    if errors:
        raise BadInput(f"{errors[0]}; `grpo env check` says all that is wrong")
