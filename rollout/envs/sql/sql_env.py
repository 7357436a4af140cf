"""A database that a policy explores to answer a question: a class for TRL's environment_factory.

Four tools: describe, sample, query, answer. It imports nothing but its siblings, so that it runs in
TRL's trainer as it does here. An episode is over after an answer or 15 steps. What a policy does
wrong is a text for it to read; only a database that cannot be used is an exception.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fieldkit.files.json_text import parse_json
from rollout.envs.sql.locked_db import LockedDatabase, Result
from rollout.envs.sql.sql_databases import database_dir
from rollout.envs.sql.sql_rewards import Call, Record

OVER = "The episode is over."
SHOWN_ROWS = 3
"""Rows of a sample."""


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def as_text(result: Result) -> str:
    """A result as a policy reads it: a line of names, a line a row, values between bars."""
    if result.error:
        return f"error: {result.error}"
    if not result.rows:
        return "(no rows)"
    lines = [" | ".join(result.columns), *(" | ".join(map(_shown, row)) for row in result.rows)]
    if result.more:
        lines.append(f"(the first {len(result.rows)} rows; there are more)")
    return "\n".join(lines)


class SqlEnv:
    """One episode at a time: `reset` with a question's row, then the tools.

    A row has `database` (the name of a file in the databases' folder), `answer` (number, text or
    list) and, where it is known, `sql`, the gold query. Without a row a question is drawn from the
    configured file by Python's generator.
    """

    questions_path: str | None = None
    db_dir: str | None = None
    step_budget: int = 15

    @classmethod
    def configure(
        cls,
        questions_path: str | None = None,
        db_dir: str | None = None,
        step_budget: int = 15,
    ) -> None:
        """Settings of all instances, because TRL makes them without arguments."""
        if step_budget < 1:
            raise ValueError(f"step_budget must be at least 1, found {step_budget}")
        cls.questions_path, cls.db_dir, cls.step_budget = questions_path, db_dir, step_budget

    def __init__(self) -> None:
        self.record = Record()
        self.done = False
        self._database: LockedDatabase | None = None
        self._tables: tuple[str, ...] = ()
        self._seen: set[tuple[str, str]] = set()

    def reset(
        self,
        database: str | None = None,
        answer: Any = None,
        sql: str | None = None,
        **row: Any,
    ) -> str:
        """Start an episode, and name the tables; the question comes first where no row was given.

        Raises ValueError for a row that lacks something, and where a database is missing.
        """
        question = ""
        if database is None:
            drawn = self._draw()
            question = drawn["prompt"]
            database, answer, sql = drawn["database"], drawn["answer"], drawn.get("sql")
        if answer is None:
            raise ValueError(f"a question about {database!r} has no `answer`")
        if Path(database).name != database or database in ("", ".", ".."):
            raise ValueError(f"`database` must be a name, found {database!r}")
        folder = Path(self.db_dir) if self.db_dir else database_dir()
        opened = LockedDatabase(folder / f"{database}.sqlite")
        named = opened.ask_itself(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
        self._database, self._seen, self.done = opened, set(), False
        self._tables = tuple(name for (name,) in named.rows)
        self.record = Record(answer, lambda: opened.ask_itself(sql).read if sql else frozenset())
        return f"{question}\nTables: {', '.join(self._tables)}"

    def describe(self, table: str) -> str:
        """
        Show a table's columns, their types and its number of rows.

        Args:
            table: The name of the table.

        Returns:
            One line a column.
        """
        found = self._find(table)
        if found is None:
            return self._end_step("describe", table, self._no_table(table), failed=True)
        columns = self._opened.ask_itself(f"PRAGMA table_info({_quoted(found)})")
        counted = self._opened.ask_itself(f"SELECT count(*) FROM {_quoted(found)}")
        if failed := columns.error or counted.error:
            return self._end_step("describe", found, f"error: {failed}", failed=True)
        ((count,),) = counted.rows
        lines = [f"{found}: {count} rows", *(f"{row[1]} {row[2]}" for row in columns.rows)]
        return self._end_step("describe", found, "\n".join(lines))

    def sample(self, table: str) -> str:
        """
        Show the first rows of a table.

        Args:
            table: The name of the table.

        Returns:
            A line of column names and one line a row.
        """
        found = self._find(table)
        if found is None:
            return self._end_step("sample", table, self._no_table(table), failed=True)
        result = self._opened.ask(f"SELECT * FROM {_quoted(found)} LIMIT {SHOWN_ROWS}")
        return self._end_step("sample", found, as_text(result), failed=bool(result.error))

    def query(self, sql: str) -> str:
        """
        Run one SELECT statement (SQLite) and show at most 20 rows of its result.

        Args:
            sql: The statement.

        Returns:
            A line of column names and one line a row, or an error.
        """
        if self._is_over():
            return OVER
        result = self._opened.ask(sql)
        told = as_text(result)
        return self._end_step("query", sql, told, failed=bool(result.error), result=result)

    def answer(self, value: str) -> str:
        """
        Give the final answer; the episode is over then.

        Args:
            value: A number, a text, or a list with commas between its elements.

        Returns:
            That the answer was taken.
        """
        if self._is_over():
            return OVER
        self.record.given = str(value)
        self.done = True
        return self._end_step("answer", str(value), "The answer is taken.")

    def _draw(self) -> dict[str, Any]:
        if self.questions_path is None:
            raise ValueError("reset() without a row needs configure(questions_path=FILE)")
        lines = Path(self.questions_path).read_text(encoding="utf-8").splitlines()
        read: dict[str, Any] = parse_json(random.choice(lines), self.questions_path)
        # A task of the loop keeps what is its world's below `info`.
        return {**read.get("info", {}), **read}

    def _is_over(self) -> bool:
        return self.done or self._database is None

    @property
    def _opened(self) -> LockedDatabase:
        assert self._database is not None, "a tool was called before reset"
        return self._database

    def _find(self, table: str) -> str | None:
        wanted = str(table).strip(" \t\n\"'`[]").lower()
        return next((name for name in self._tables if name.lower() == wanted), None)

    def _no_table(self, table: str) -> str:
        return f"error: no table {str(table)[:40]!r}; there are {', '.join(self._tables)}"

    def _end_step(
        self,
        tool: str,
        argument: str,
        told: str,
        *,
        failed: bool = False,
        result: Result | None = None,
    ) -> str:
        """Note a step; what the policy is told of it."""
        if tool != "answer" and self._is_over():
            return OVER
        key = (tool, " ".join(argument.split()).rstrip("; "))
        self.record.calls.append(Call(tool, argument, failed, key in self._seen, result))
        self._seen.add(key)
        if not self.done and len(self.record.calls) >= self.step_budget:
            self.done = True
            return f"{told}\nThat was the last step."
        return told


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
