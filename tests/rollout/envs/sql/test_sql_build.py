"""The databases: rows of the wheels' tables as they are, and what the catalog promises of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fieldkit.errors import Unavailable
from rollout.envs.sql import sql_build
from rollout.envs.sql.sql_build import build_databases, install_wheels, write_database
from rollout.envs.sql.sql_catalog import Column, Database, Role, Table, Use
from rollout.envs.sql.sql_databases import CATALOG, database_dir


def database(source: str, *columns: tuple[str, str]) -> Database:
    """A database of one table, made of one file of a wheel."""
    made = tuple(Column(name, kind, Role.OTHER, name) for name, kind in columns)
    names = ", ".join(name for name, _ in columns)
    table = Table("things", "things", "thing", f"SELECT {names} FROM raw", made)
    return Database("made", Use.POOL, (("raw", source),), (table,))


def rows(path: Path, sql: str = "SELECT * FROM things") -> list[Any]:
    with sqlite3.connect(path) as db:
        found = db.execute(sql).fetchall()
    db.close()
    return found


def test_every_sort_of_file_gives_its_rows_with_missing_values_as_null(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,size\nAsh,1\nNA,NA\n,2.5\n")
    (tmp_path / "b.json").write_text('[{"name": "Elm", "size": 1}, {"name": null, "size": 2}]')
    frame = pd.DataFrame({"name": ["Fir", None], "size": [1.0, None]})
    frame.to_pickle(tmp_path / "c.pkl.compress", compression="xz")
    found = {}
    for file in ("a.csv", "b.json", "c.pkl.compress"):
        path = tmp_path / f"{file}.sqlite"
        write_database(database(file, ("name", "TEXT"), ("size", "REAL")), tmp_path, path)
        found[file] = rows(path)
    assert found["a.csv"] == [("Ash", 1), (None, None), ("", 2.5)]
    assert found["b.json"] == [("Elm", 1), (None, 2)]
    assert found["c.pkl.compress"] == [("Fir", 1), (None, None)]


def test_whole_numbers_that_a_missing_value_made_floats_are_whole_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("year\n1990\nNA\n")
    write_database(database("a.csv", ("year", "INTEGER")), tmp_path, tmp_path / "x.sqlite")
    assert rows(tmp_path / "x.sqlite", "SELECT typeof(year) FROM things") == [
        ("integer",),
        ("null",),
    ]


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name\nAsh\n")
    made = database("a.csv", ("name", "TEXT"))
    for name in ("x", "y"):
        write_database(made, tmp_path, tmp_path / f"{name}.sqlite")
    assert (tmp_path / "x.sqlite").read_bytes() == (tmp_path / "y.sqlite").read_bytes()


def test_a_wheel_that_lacks_a_table_leaves_nothing_half_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Unavailable, match=r"airlines\.csv: not in the installed wheels"):
        build_databases(out, tmp_path)
    assert not out.exists()


def test_wheels_that_cannot_be_had_are_an_error_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing.txt"
    monkeypatch.setattr(sql_build, "REQUIREMENTS", missing)
    with pytest.raises(
        Unavailable, match=r"missing\.txt.*\n.*`\S*python\S* -m rollout\.envs\.sql`"
    ):
        install_wheels(tmp_path / "wheels")


@pytest.mark.envs
@pytest.mark.parametrize("made", CATALOG, ids=lambda made: made.name)
def test_every_column_of_the_catalog_is_what_its_role_says(made: Database) -> None:
    path = database_dir() / f"{made.name}.sqlite"
    for table in made.tables:
        for column in table.columns:
            ((count, filled, distinct),) = rows(
                path,
                f'SELECT count(*), count("{column.name}"), count(DISTINCT "{column.name}")'
                f' FROM "{table.name}"',
            )
            where = f"{made.name}.{table.name}.{column.name}"
            assert filled, f"{where}: no row has a value"
            if column.role is Role.LABEL:
                assert distinct > 0.6 * count, f"{where}: {distinct} of {count}"
            if column.role is Role.CATEGORY:
                assert 1 < distinct < filled, f"{where}: {distinct} of {filled}"
