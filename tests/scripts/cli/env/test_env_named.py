"""What a name behind `grpo env` means: rows of a run's pool, keys that were typed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.envs.configured import register_environments
from scripts.base.checkout import ROOT
from scripts.cli.env.env_named import env_of, order_of, other_style

FAULTY = ROOT / "tests" / "scripts" / "environments" / "faulty.py"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[str]:
    """A run with a class that takes a column, and its pool."""
    (tmp_path / "pool.jsonl").write_text(
        '{"environment": "narrow", "question": "one"}\n{"environment": "narrow", "question": "two"}'
    )
    (tmp_path / "run.toml").write_text(
        f'[data]\npool = "{tmp_path}/pool.jsonl"\n'
        f'[envs.narrow]\nuse = "{FAULTY}:Narrow"\npasses = "reward >= 1"\n'
    )
    yield str(tmp_path)
    register_environments({}, ROOT)


def test_a_class_of_a_run_is_played_with_rows_of_its_pool(run: str) -> None:
    order = order_of("narrow", run, n=8)
    assert [row["question"] for row in order.rows] == ["one", "two"]
    assert len(order_of("narrow", run, n=1).rows) == 1
    assert "question" not in order_of("narrow", run).rows[0]


def test_a_name_that_a_run_has_not_is_told_those_that_it_has(run: str) -> None:
    with pytest.raises(BadInput, match=r"there is no \[envs\.wide\] in run\.toml; known: narrow"):
        env_of(run, "wide")


def test_a_class_of_a_run_needs_no_python(run: str) -> None:
    typed = {"passes": "", "ends": "", "python": "/bin/python"}
    with pytest.raises(BadInput, match=r"--python: narrow of .* is a class"):
        other_style("narrow", run, typed, "again", lambda line: None)
