"""The SQL agent's oracle and its policy by chance."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.envs.sql.sql_catalog import Use
from rollout.envs.sql.sql_env import SqlEnv
from rollout.envs.sql.sql_questions import write_questions
from rollout.envs.sql.sql_rewards import correctness_of
from rollout.envs.sql.sql_yardsticks import chance, oracle
from tests.rollout.envs.sql.library import library, write_library


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    write_library(tmp_path)
    SqlEnv.configure(db_dir=str(tmp_path))
    yield tmp_path
    SqlEnv.configure()


def test_the_oracle_looks_asks_and_is_right(folder: Path) -> None:
    for task in write_questions(Use.HELDOUT, 40, folder, [library(Use.HELDOUT)]):
        env = SqlEnv()
        env.reset(**task.info)
        calls = oracle(**task.info)
        assert [tool for tool, _ in calls][-2:] == ["query", "answer"]
        for tool, arguments in calls:
            getattr(env, tool)(**arguments)
        assert correctness_of(env.record), task


def test_chance_uses_every_tool_and_what_it_was_shown(folder: Path) -> None:
    shown = "Tables: authors, books\nbooks: 7 rows\ntitle TEXT\npages INTEGER"
    rng = random.Random(0)
    calls = [chance(rng, shown, answer=500, sql="SELECT secret") for _ in range(400)]
    assert set(Counter(tool for tool, _ in calls)) == {"describe", "sample", "query", "answer"}
    said = " ".join(text for _, arguments in calls for text in arguments.values())
    assert "avg(pages)" in said
    assert "authors" in said
    assert "secret" not in said
    assert "500" not in said


def test_chance_has_something_to_say_before_it_was_shown_anything() -> None:
    rng = random.Random(0)
    assert all(chance(rng, "") for _ in range(50))
