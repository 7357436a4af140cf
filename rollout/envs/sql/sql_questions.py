"""Questions about the databases, each with the SQL that answers it, checked by running it.

A question is kept where its answer is unambiguous: a tie for the first place, an empty result or a
long list is no question. The splits differ twice: no database of the pool is in another split, and
some templates are only in the held-out questions.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.sql.locked_db import LockedDatabase
from rollout.envs.sql.sql_catalog import Database, Use
from rollout.envs.sql.sql_databases import CATALOG, database_dir
from rollout.envs.sql.sql_templates import (
    POOL_TEMPLATES,
    TEMPLATES_OF,
    Draw,
    Make,
    NothingToAsk,
    Question,
    can_be_named,
)

ENV = "sql"
"""What the tasks name in `env`."""

_ATTEMPTS = 200
"""Draws of one template in one database without a new question, then there is none left."""


# --- the answers ----------------------------------------------------------------------------------


def gold_of(question: Question, database: LockedDatabase) -> Any:
    """The gold query's answer as a policy could get it: a number, a text, or a list of at most
    `LISTED`; None where it is no good answer. Raises `BadInput` for a query that does not run."""
    result = database.ask(question.sql)
    if result.error:
        raise BadInput(f"{database.path.name}: {question.sql}: {result.error}")
    values = [value for (value, *_) in result.rows]
    distinct = len({str(v).casefold() for v in values})
    if result.more or not len(values) == distinct == question.answers:
        return None
    if any(v is None or v == 0 or not _can_be_answered(v) for v in values):
        return None
    return values if question.answers > 1 else values[0]


def _can_be_answered(value: Any) -> bool:
    # A comma would part the elements of a list.
    return not isinstance(value, str) or (can_be_named(value) and not set(value) & set(",;"))


def _form_of(answer: Any) -> str:
    if isinstance(answer, list):
        return "a list with commas between its elements"
    return "a text" if isinstance(answer, str) else "a number"


def _tasks(
    database: Database, folder: Path, templates: dict[str, Make]
) -> dict[str, Iterator[Task]]:
    """Of each template its questions about one database, as they are drawn."""
    path = folder / f"{database.name}.sqlite"
    locked = LockedDatabase(path)
    asked: set[str] = set()

    def drawn(name: str, make: Make) -> Iterator[Task]:
        rng = random.Random(f"{database.name}/{name}")
        with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as db:
            draw, number, since = Draw(database, db, rng), 0, 0
            while since < _ATTEMPTS:
                since += 1
                try:
                    question = make(draw)
                except NothingToAsk:
                    continue
                if question.text in asked:
                    continue
                answer = gold_of(question, locked)
                asked.add(question.text)
                if answer is None:
                    continue
                since = 0
                yield _task(database, name, number, question, answer)
                number += 1
        db.close()

    return {name: drawn(name, make) for name, make in templates.items()}


def _task(database: Database, name: str, number: int, question: Question, answer: Any) -> Task:
    known = name in POOL_TEMPLATES
    return Task(
        f"sql-{database.name}-{name}-{number:02d}",
        ENV,
        f"{question.text} Answer with {_form_of(answer)}.",
        {
            "database": database.name,
            "answer": answer,
            "sql": question.sql,
            "template": name,
            "unseen_template": not known,
        },
    )


def write_questions(
    use: Use, count: int, folder: Path | None = None, catalog: Sequence[Database] = CATALOG
) -> list[Task]:
    """`count` questions of a split, as evenly over its databases and templates as they allow.

    folder: where the databases are. Equal databases give equal questions. Raises `BadInput` where
    the split has fewer, and `MissingFile` without databases.
    """
    folder = folder or database_dir()
    waiting = [
        questions
        for database in catalog
        if database.use is use
        for questions in _tasks(database, folder, TEMPLATES_OF[use]).values()
    ]
    found: list[Task] = []
    while waiting and len(found) < count:
        # One of each in turn; who has no more is out.
        turn = [(questions, next(questions, None)) for questions in waiting]
        waiting = [questions for questions, task in turn if task is not None]
        found += [task for _, task in turn if task is not None]
    if len(found) < count:
        raise BadInput(f"the {use.value} databases give {len(found)} questions, not {count}")
    return sorted(found[:count], key=lambda task: task.task_id)
