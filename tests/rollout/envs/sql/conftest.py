"""A small database of cities, and workers of one's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.envs.sql.locked_db import LockedDatabase, QueryLimits, WorkerPool

CITIES = [
    ("Lisbon", "Portugal", 545_000, 1256),
    ("Porto", "Portugal", 232_000, 1123),
    ("Madrid", "Spain", 3_280_000, 1083),
    ("Bilbao", "Spain", 346_000, 1300),
    ("Lyon", "France", 522_000, None),
]


def write_cities(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE cities (name TEXT, country TEXT, people INTEGER, founded INTEGER)")
        db.executemany("INSERT INTO cities VALUES (?, ?, ?, ?)", CITIES)
        db.execute("CREATE TABLE numbers (n INTEGER)")
        db.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in range(2000)])
    db.close()
    return path


@pytest.fixture
def cities(tmp_path: Path) -> Path:
    return write_cities(tmp_path / "cities.sqlite")


@pytest.fixture
def workers() -> Iterator[WorkerPool]:
    pool = WorkerPool(QueryLimits(seconds=2), size=1)
    yield pool
    pool.close()


@pytest.fixture
def database(cities: Path, workers: WorkerPool) -> LockedDatabase:
    return LockedDatabase(cities, workers)
