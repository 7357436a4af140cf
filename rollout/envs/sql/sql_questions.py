"""Questions about the databases, each with the SQL that answers it, checked by running it.

A template is a sentence and a query with the same holes; columns, tables and values that fit them
are drawn from the catalog and from the rows. A question is kept where its answer is unambiguous:
a tie for the first place, an empty result or a long list is no question. The splits differ twice:
no database of the pool is in another split, and some templates are only in the held-out questions.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.sql.locked_db import LockedDatabase
from rollout.envs.sql.sql_catalog import CATALOG, Column, Database, Role, Table, Use, database_dir

ENV = "sql"
"""What the tasks name in `env`."""

TEXT_CHARACTERS = 40
"""A value in a question, or an answer, has at most as many."""
LISTED = 3
"""Rows that a question for the first few asks for."""
_ATTEMPTS = 200
"""Draws of one template in one database without a new question, then there is none left."""


@dataclass(frozen=True)
class Question:
    """One question and its gold query."""

    text: str
    sql: str
    answers: int = 1
    """Values that the answer has; several are a list."""


def _a(words: str) -> str:
    """With its article."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


@dataclass(frozen=True)
class Draw:
    """A database, and the generator that chooses in it."""

    database: Database
    db: sqlite3.Connection
    rng: random.Random

    def column(self, *roles: Role) -> tuple[Table, Column] | None:
        """A table and one of its columns of these roles; None where the database has none."""
        found = [(t, c) for t in self.database.tables for c in t.having(*roles)]
        return self.rng.choice(found) if found else None

    def beside(self, table: Table, *roles: Role) -> Column | None:
        """A column of these roles in a table."""
        found = table.having(*roles)
        return self.rng.choice(found) if found else None

    def value(self, table: Table, column: Column, *, once: bool = False) -> Any:
        """A value of the column that a question can name; None where there is none. once: one that
        a single row has, else one that several have."""
        rows = self.db.execute(
            f"SELECT {_q(column)} FROM {_q(table)} WHERE {_q(column)} IS NOT NULL"
            f" GROUP BY 1 HAVING count(*) {'= 1' if once else '> 1'} ORDER BY 1"
        ).fetchall()
        named = [value for (value,) in rows if _can_be_named(value)]
        return self.rng.choice(named) if named else None

    def bound(self, table: Table, column: Column) -> Any:
        """A value between the first and the last fifth of the column's; None for a column that has
        few."""
        rows = self.db.execute(
            f"SELECT DISTINCT {_q(column)} FROM {_q(table)} WHERE {_q(column)} IS NOT NULL"
            " ORDER BY 1"
        ).fetchall()
        inner = rows[len(rows) // 5 : -(len(rows) // 5) or None]
        return self.rng.choice(inner)[0] if len(rows) >= 5 else None


Make = Callable[[Draw], Question | None]


def _q(named: Table | Column | str) -> str:
    """A name as SQL has it."""
    name = named if isinstance(named, str) else named.name
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _v(value: Any) -> str:
    """A value as SQL has it."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def _can_be_named(value: Any) -> bool:
    if not isinstance(value, str):
        return True
    return 0 < len(value.strip()) == len(value) <= TEXT_CHARACTERS and value.isprintable()


# --- templates ------------------------------------------------------------------------------------


def _all_rows(d: Draw) -> Question:
    table = d.rng.choice(d.database.tables)
    return Question(f"How many {table.rows} are there?", f"SELECT count(*) FROM {_q(table)}")


def _with_value(d: Draw) -> Question | None:
    if (found := d.column(Role.CATEGORY, Role.YEAR)) is None:
        return None
    table, column = found
    if (value := d.value(table, column)) is None:
        return None
    return Question(
        f"How many {table.rows} have the {column.words} {value}?",
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} = {_v(value)}",
    )


def _above(d: Draw) -> Question | None:
    if (found := d.column(Role.MEASURE)) is None or (bound := d.bound(*found)) is None:
        return None
    table, column = found
    return Question(
        f"How many {table.rows} have {_a(column.words)} above {bound}?",
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} > {_v(bound)}",
    )


def _average(d: Draw) -> Question | None:
    if (found := d.column(Role.MEASURE)) is None:
        return None
    table, column = found
    return Question(
        f"What is the average {column.words} of the {table.rows}?",
        f"SELECT avg({_q(column)}) FROM {_q(table)}",
    )


def _highest(d: Draw) -> Question | None:
    if (found := d.column(Role.MEASURE)) is None:
        return None
    table, column = found
    return Question(
        f"What is the highest {column.words} of {_a(table.row)}?",
        f"SELECT max({_q(column)}) FROM {_q(table)}",
    )


def _values(d: Draw) -> Question | None:
    if (found := d.column(Role.CATEGORY, Role.YEAR)) is None:
        return None
    table, column = found
    return Question(
        f"How many different values of {column.words} are there among the {table.rows}?",
        f"SELECT count(DISTINCT {_q(column)}) FROM {_q(table)}",
    )


def _of_extreme(d: Draw, word: str, order: str) -> Question | None:
    if (found := d.column(Role.MEASURE)) is None:
        return None
    table, measure = found
    if (label := d.beside(table, Role.LABEL)) is None:
        return None
    extreme = "max" if order == "DESC" else "min"
    return Question(
        f"Which {table.row} has the {word} {measure.words}? Give its {label.words}.",
        # Rows that tie all come, and a question with several answers is dropped.
        f"SELECT {_q(label)} FROM {_q(table)} WHERE {_q(measure)} ="
        f" (SELECT {extreme}({_q(measure)}) FROM {_q(table)})",
    )


def _of_highest(d: Draw) -> Question | None:
    return _of_extreme(d, "highest", "DESC")


def _of_lowest(d: Draw) -> Question | None:
    return _of_extreme(d, "lowest", "ASC")


def _looked_up(d: Draw) -> Question | None:
    if (found := d.column(Role.LABEL)) is None:
        return None
    table, label = found
    asked = d.beside(table, Role.CATEGORY, Role.MEASURE, Role.YEAR, Role.DATE)
    value = d.value(table, label, once=True)
    if asked is None or value is None:
        return None
    return Question(
        f"What is the {asked.words} of the {table.row} with the {label.words} {value}?",
        f"SELECT {_q(asked)} FROM {_q(table)} WHERE {_q(label)} = {_v(value)}",
    )


def _most_common(d: Draw) -> Question | None:
    if (found := d.column(Role.CATEGORY)) is None:
        return None
    table, column = found
    counts = (
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} IS NOT NULL GROUP BY {_q(column)}"
    )
    return Question(
        f"Which {column.words} do most {table.rows} have?",
        f"SELECT {_q(column)} FROM {_q(table)} WHERE {_q(column)} IS NOT NULL"
        f" GROUP BY {_q(column)} HAVING count(*) = ({counts} ORDER BY 1 DESC LIMIT 1)",
    )


def _linked(d: Draw, what: Callable[[Table], tuple[str, str] | None]) -> Question | None:
    """A question about the rows that belong to one row of another table. what: of the child's rows,
    in words and in SQL."""
    if not d.database.links:
        return None
    link = d.rng.choice(d.database.links)
    child, parent = d.database.table(link.child), d.database.table(link.parent)
    label = d.beside(parent, Role.LABEL)
    if label is None or (asked := what(child)) is None:
        return None
    keys = d.db.execute(
        f"SELECT DISTINCT p.{_q(label)} FROM {_q(parent)} p JOIN {_q(child)} c"
        f" ON c.{_q(link.key)} = p.{_q(link.parent_key)} ORDER BY 1 LIMIT 500"
    ).fetchall()
    named = [value for (value,) in keys if isinstance(value, str) and _can_be_named(value)]
    if not named:
        return None
    value = d.rng.choice(named)
    words, sql = asked
    return Question(
        f"{words} of the {parent.row} with the {label.words} {value}?",
        f"SELECT {sql} FROM {_q(child)} c JOIN {_q(parent)} p"
        f" ON c.{_q(link.key)} = p.{_q(link.parent_key)} WHERE p.{_q(label)} = {_v(value)}",
    )


def _linked_count(d: Draw) -> Question | None:
    return _linked(d, lambda child: (f"What is the number of {child.rows}", "count(*)"))


def _linked_average(d: Draw) -> Question | None:
    def average(child: Table) -> tuple[str, str] | None:
        if (measure := d.beside(child, Role.MEASURE)) is None:
            return None
        return f"What is the average {measure.words} of the {child.rows}", f"avg(c.{_q(measure)})"

    return _linked(d, average)


def _average_with_value(d: Draw) -> Question | None:
    if (found := d.column(Role.MEASURE)) is None:
        return None
    table, measure = found
    category = d.beside(table, Role.CATEGORY, Role.YEAR)
    if category is None or (value := d.value(table, category)) is None:
        return None
    return Question(
        f"What is the average {measure.words} of the {table.rows} with the {category.words}"
        f" {value}?",
        f"SELECT avg({_q(measure)}) FROM {_q(table)} WHERE {_q(category)} = {_v(value)}",
    )


def _between(d: Draw) -> Question | None:
    if (found := d.column(Role.YEAR, Role.DATE)) is None:
        return None
    table, column = found
    first, last = d.bound(table, column), d.bound(table, column)
    if first is None or last is None or first >= last:
        return None
    return Question(
        f"How many {table.rows} have {_a(column.words)} from {first} to {last}?",
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} BETWEEN {_v(first)} AND {_v(last)}",
    )


def _share(d: Draw) -> Question | None:
    if (found := d.column(Role.CATEGORY)) is None:
        return None
    table, column = found
    if (value := d.value(table, column)) is None:
        return None
    return Question(
        f"What percentage of the {table.rows} has the {column.words} {value}?",
        f"SELECT 100.0 * count(CASE WHEN {_q(column)} = {_v(value)} THEN 1 END) / count(*)"
        f" FROM {_q(table)}",
    )


def _first_three(d: Draw) -> Question | None:
    if (found := d.column(Role.MEASURE)) is None:
        return None
    table, measure = found
    if (label := d.beside(table, Role.LABEL)) is None:
        return None
    third = (
        f"SELECT {_q(measure)} FROM {_q(table)} WHERE {_q(measure)} IS NOT NULL ORDER BY 1 DESC"
        f" LIMIT 1 OFFSET {LISTED - 1}"
    )
    return Question(
        f"Which three {table.rows} have the highest {measure.words}? Give each {label.words}.",
        f"SELECT {_q(label)} FROM {_q(table)} WHERE {_q(measure)} >= ({third})",
        answers=LISTED,
    )


POOL_TEMPLATES: dict[str, Make] = {
    "all_rows": _all_rows,
    "with_value": _with_value,
    "above": _above,
    "average": _average,
    "highest": _highest,
    "values": _values,
    "of_highest": _of_highest,
    "looked_up": _looked_up,
    "most_common": _most_common,
    "linked_count": _linked_count,
}
DEVELOPMENT_TEMPLATES: dict[str, Make] = {
    "of_lowest": _of_lowest,
    "average_with_value": _average_with_value,
}
HELDOUT_TEMPLATES: dict[str, Make] = {
    "linked_average": _linked_average,
    "between": _between,
    "share": _share,
    "first_three": _first_three,
}
TEMPLATES_OF = {
    Use.POOL: POOL_TEMPLATES,
    Use.DEVELOPMENT: {**POOL_TEMPLATES, **DEVELOPMENT_TEMPLATES},
    Use.HELDOUT: {**POOL_TEMPLATES, **HELDOUT_TEMPLATES},
}
"""A split's own templates stand beside those of the pool, so that a new database and a new sentence
can be told apart in the tables."""


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
    return not isinstance(value, str) or (_can_be_named(value) and not set(value) & set(",;"))


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
                question = make(draw)
                if question is None or question.text in asked:
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
