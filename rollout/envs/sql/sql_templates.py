"""The sentences that ask about a database, each with its query: the same holes in both.

Tables, columns and values that fit the holes are drawn from the catalog and from the rows. Whether
what comes out is a question, its answer decides (`sql_questions`).
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rollout.envs.sql.sql_catalog import Column, Database, Role, Table, Use

TEXT_CHARACTERS = 40
"""A value in a question, or an answer, has at most as many."""
LISTED = 3
"""Rows that a question for the first few asks for."""


T = TypeVar("T")


class NothingToAsk(Exception):
    """The database has no column or value that fits a hole of the sentence."""


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

    def one_of(self, found: Sequence[T]) -> T:
        """One of these. Raises `NothingToAsk` where there is none, as everything below."""
        if not found:
            raise NothingToAsk
        return self.rng.choice(found)

    def column(self, *roles: Role) -> tuple[Table, Column]:
        """A table and one of its columns of these roles."""
        return self.one_of([(t, c) for t in self.database.tables for c in t.having(*roles)])

    def beside(self, table: Table, *roles: Role) -> Column:
        """A column of these roles in a table."""
        return self.one_of(table.having(*roles))

    def value(self, table: Table, column: Column, *, once: bool = False) -> Any:
        """A value of the column that a question can name. once: one that a single row has, else one
        that several have."""
        rows = self.db.execute(
            f"SELECT {_q(column)} FROM {_q(table)} WHERE {_q(column)} IS NOT NULL"
            f" GROUP BY 1 HAVING count(*) {'= 1' if once else '> 1'} ORDER BY 1"
        ).fetchall()
        return self.one_of([value for (value,) in rows if can_be_named(value)])

    def bound(self, table: Table, column: Column) -> Any:
        """A value between the first and the last fifth of the column's, if it has five."""
        rows = self.db.execute(
            f"SELECT DISTINCT {_q(column)} FROM {_q(table)} WHERE {_q(column)} IS NOT NULL"
            " ORDER BY 1"
        ).fetchall()
        fifth = len(rows) // 5
        return self.one_of(rows[fifth:-fifth] if fifth else [])[0]


Make = Callable[[Draw], Question]


def _q(named: Table | Column | str) -> str:
    """A name as SQL has it."""
    name = named if isinstance(named, str) else named.name
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _v(value: Any) -> str:
    """A value as SQL has it."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def can_be_named(value: Any) -> bool:
    if not isinstance(value, str):
        return True
    return 0 < len(value.strip()) == len(value) <= TEXT_CHARACTERS and value.isprintable()


# --- templates ------------------------------------------------------------------------------------


def _all_rows(d: Draw) -> Question:
    table = d.rng.choice(d.database.tables)
    return Question(f"How many {table.rows} are there?", f"SELECT count(*) FROM {_q(table)}")


def _with_value(d: Draw) -> Question:
    table, column = d.column(Role.CATEGORY, Role.YEAR)
    value = d.value(table, column)
    return Question(
        f"How many {table.rows} have the {column.words} {value}?",
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} = {_v(value)}",
    )


def _above(d: Draw) -> Question:
    table, column = d.column(Role.MEASURE)
    bound = d.bound(table, column)
    return Question(
        f"How many {table.rows} have {_a(column.words)} above {bound}?",
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} > {_v(bound)}",
    )


def _average(d: Draw) -> Question:
    table, column = d.column(Role.MEASURE)
    return Question(
        f"What is the average {column.words} of the {table.rows}?",
        f"SELECT avg({_q(column)}) FROM {_q(table)}",
    )


def _highest(d: Draw) -> Question:
    table, column = d.column(Role.MEASURE)
    return Question(
        f"What is the highest {column.words} of {_a(table.row)}?",
        f"SELECT max({_q(column)}) FROM {_q(table)}",
    )


def _values(d: Draw) -> Question:
    table, column = d.column(Role.CATEGORY, Role.YEAR)
    return Question(
        f"How many different values of {column.words} are there among the {table.rows}?",
        f"SELECT count(DISTINCT {_q(column)}) FROM {_q(table)}",
    )


def _of_extreme(d: Draw, word: str, order: str) -> Question:
    table, measure = d.column(Role.MEASURE)
    label = d.beside(table, Role.LABEL)
    extreme = "max" if order == "DESC" else "min"
    return Question(
        f"Which {table.row} has the {word} {measure.words}? Give its {label.words}.",
        # Rows that tie all come, and a question with several answers is dropped.
        f"SELECT {_q(label)} FROM {_q(table)} WHERE {_q(measure)} ="
        f" (SELECT {extreme}({_q(measure)}) FROM {_q(table)})",
    )


def _of_highest(d: Draw) -> Question:
    return _of_extreme(d, "highest", "DESC")


def _of_lowest(d: Draw) -> Question:
    return _of_extreme(d, "lowest", "ASC")


def _looked_up(d: Draw) -> Question:
    table, label = d.column(Role.LABEL)
    # In this order, because the committed questions were drawn in it.
    columns = table.having(Role.CATEGORY, Role.MEASURE, Role.YEAR, Role.DATE)
    asked = d.rng.choice(columns) if columns else None
    value = d.value(table, label, once=True)
    if asked is None:
        raise NothingToAsk
    return Question(
        f"What is the {asked.words} of the {table.row} with the {label.words} {value}?",
        f"SELECT {_q(asked)} FROM {_q(table)} WHERE {_q(label)} = {_v(value)}",
    )


def _most_common(d: Draw) -> Question:
    table, column = d.column(Role.CATEGORY)
    counts = (
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} IS NOT NULL GROUP BY {_q(column)}"
    )
    return Question(
        f"Which {column.words} do most {table.rows} have?",
        f"SELECT {_q(column)} FROM {_q(table)} WHERE {_q(column)} IS NOT NULL"
        f" GROUP BY {_q(column)} HAVING count(*) = ({counts} ORDER BY 1 DESC LIMIT 1)",
    )


def _linked(d: Draw, what: Callable[[Table], tuple[str, str]]) -> Question:
    """A question about the rows that belong to one row of another table. what: of the child's rows,
    in words and in SQL."""
    link = d.one_of(d.database.links)
    child, parent = d.database.table(link.child), d.database.table(link.parent)
    label = d.beside(parent, Role.LABEL)
    words, sql = what(child)
    keys = d.db.execute(
        f"SELECT DISTINCT p.{_q(label)} FROM {_q(parent)} p JOIN {_q(child)} c"
        f" ON c.{_q(link.key)} = p.{_q(link.parent_key)} ORDER BY 1 LIMIT 500"
    ).fetchall()
    value = d.one_of([v for (v,) in keys if isinstance(v, str) and can_be_named(v)])
    return Question(
        f"{words} of the {parent.row} with the {label.words} {value}?",
        f"SELECT {sql} FROM {_q(child)} c JOIN {_q(parent)} p"
        f" ON c.{_q(link.key)} = p.{_q(link.parent_key)} WHERE p.{_q(label)} = {_v(value)}",
    )


def _linked_count(d: Draw) -> Question:
    return _linked(d, lambda child: (f"What is the number of {child.rows}", "count(*)"))


def _linked_average(d: Draw) -> Question:
    def average(child: Table) -> tuple[str, str]:
        measure = d.beside(child, Role.MEASURE)
        return f"What is the average {measure.words} of the {child.rows}", f"avg(c.{_q(measure)})"

    return _linked(d, average)


def _average_with_value(d: Draw) -> Question:
    table, measure = d.column(Role.MEASURE)
    category = d.beside(table, Role.CATEGORY, Role.YEAR)
    value = d.value(table, category)
    return Question(
        f"What is the average {measure.words} of the {table.rows} with the {category.words}"
        f" {value}?",
        f"SELECT avg({_q(measure)}) FROM {_q(table)} WHERE {_q(category)} = {_v(value)}",
    )


def _between(d: Draw) -> Question:
    table, column = d.column(Role.YEAR, Role.DATE)
    first, last = d.bound(table, column), d.bound(table, column)
    if first >= last:
        raise NothingToAsk
    return Question(
        f"How many {table.rows} have {_a(column.words)} from {first} to {last}?",
        f"SELECT count(*) FROM {_q(table)} WHERE {_q(column)} BETWEEN {_v(first)} AND {_v(last)}",
    )


def _share(d: Draw) -> Question:
    table, column = d.column(Role.CATEGORY)
    value = d.value(table, column)
    return Question(
        f"What percentage of the {table.rows} has the {column.words} {value}?",
        f"SELECT 100.0 * count(CASE WHEN {_q(column)} = {_v(value)} THEN 1 END) / count(*)"
        f" FROM {_q(table)}",
    )


def _first_three(d: Draw) -> Question:
    table, measure = d.column(Role.MEASURE)
    label = d.beside(table, Role.LABEL)
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
