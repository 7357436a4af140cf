"""A small database of books with every role that a template asks for, in a folder of its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rollout.envs.sql.sql_catalog import Column, Database, Link, Role, Table, Use

AUTHORS = [("Ada", "Wales"), ("Ben", "Wales"), ("Cleo", "Malta")]
BOOKS = [
    ("Ash", "Ada", "novel", 1990, "2001-01-01", 100),
    ("Birch", "Ada", "novel", 1991, "2002-01-01", 200),
    ("Cedar", "Ada", "essay", 1991, "2003-01-01", 300),
    ("Date", "Ben", "novel", 1992, "2004-01-01", 400),
    ("Elm", "Ben", "essay", 1993, "2005-01-01", 500),
    ("Fir", "Cleo", "poem", 1994, "2006-01-01", None),
    ("Gum, red", "Cleo", "poem", 1995, "2007-01-01", None),
]


def _table(name: str, row: str, *columns: tuple[str, str, Role]) -> Table:
    made = tuple(Column(name, kind, role, name) for name, kind, role in columns)
    return Table(name, name, row, "", made)


def library(use: Use) -> Database:
    """The catalog's entry."""
    authors = _table(
        "authors", "author", ("name", "TEXT", Role.LABEL), ("home", "TEXT", Role.CATEGORY)
    )
    books = _table(
        "books",
        "book",
        ("title", "TEXT", Role.LABEL),
        ("author", "TEXT", Role.OTHER),
        ("kind", "TEXT", Role.CATEGORY),
        ("year", "INTEGER", Role.YEAR),
        ("bought", "TEXT", Role.DATE),
        ("pages", "INTEGER", Role.MEASURE),
    )
    links = (Link("books", "author", "authors", "name"),)
    return Database("library", use, (), (authors, books), links)


def write_library(folder: Path) -> Path:
    """The database, as `library.sqlite` in `folder`, which is returned."""
    with sqlite3.connect(folder / "library.sqlite") as db:
        db.execute("CREATE TABLE authors (name TEXT, home TEXT)")
        db.executemany("INSERT INTO authors VALUES (?, ?)", AUTHORS)
        db.execute(
            "CREATE TABLE books (title TEXT, author TEXT, kind TEXT, year INTEGER, bought TEXT,"
            " pages INTEGER)"
        )
        db.executemany("INSERT INTO books VALUES (?, ?, ?, ?, ?, ?)", BOOKS)
    db.close()
    return folder
