"""`grpo env tasks`: an environment's rows as a task file that never changes.

A row of a dataset becomes one task. Without data, because `reset()` gives the prompt, tasks differ
only in their seed, which is a column of the row and part of the task's id. The generators are
seeded by the id, so a task is the same wherever it is played.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldkit.codec import encode, from_plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_text
from fieldkit.records import Task
from rollout.envs.configured import row_fields
from rollout.envs.env_settings import EnvSettings
from rollout.envs.foreign.verifiers_world import dataset_rows
from scripts.environments.contract import Level, broken_promises

DIGITS = 6
"""Digits of a seed in an id, so that ids sort by seed."""


def seed_tasks(name: str, n: int, seed: int) -> list[Task]:
    """`n` tasks of the environment `name` that differ by seed, the first of which is `seed`."""
    return [Task(f"{name}-{s:0{DIGITS}d}", name, "", {"seed": s}) for s in range(seed, seed + n)]


def row_tasks(
    name: str, rows: Sequence[dict[str, Any]], where: str, copies: str = ""
) -> list[Task]:
    """The rows as tasks. Equal rows are different tasks, because the id seeds the world; their ids
    end with `copies` (default: the name of the file `where`) and a number, as where a run reads the
    rows itself."""
    made = [
        from_plain(Task, row_fields({**row, "environment": name}, name), f"{where}:{number}")
        for number, row in enumerate(rows, 1)
    ]
    counts, seen = Counter(task.task_id for task in made), Counter[str]()
    tasks = []
    for task in made:
        seen[task.task_id] += 1
        copy = f"-{copies or Path(where).stem}-{seen[task.task_id]}"
        tasks.append(replace(task, task_id=task.task_id + copy * (counts[task.task_id] > 1)))
    return tasks


def dataset_tasks(
    name: str, settings: EnvSettings, root: Path, split: str, n: int, seed: int
) -> list[Task]:
    """`n` rows of a verifiers environment's own dataset as tasks. Raises as `dataset_rows`."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = dataset_rows(name, settings, root, split, n, seed, Path(scratch))
    return row_tasks(name, rows, f"envs.{name}, {split}", split)


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
