"""Rows as task files: what is written, and what is refused with nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.tasks import check_disjoint
from scripts.base.checkout import ROOT
from scripts.environments.freeze import row_tasks, seed_tasks, write_tasks
from tests.scripts.environments.faulty import Narrow, Sound

FAULTY = Path(__file__).with_name("faulty.py")


def test_seeds_make_tasks_of_which_no_two_are_equal() -> None:
    tasks = seed_tasks("game", 3, 7)
    assert [t.task_id for t in tasks] == ["game-000007", "game-000008", "game-000009"]
    assert tasks[0].info == {"seed": 7}


def test_rows_keep_all_their_columns_but_the_one_that_routes_them() -> None:
    [task] = row_tasks("game", [{"prompt": "Go.", "level": 3}], "rows.jsonl")
    assert (task.env, task.prompt) == ("game", "Go.")
    assert task.info == {"level": 3}


def test_rows_that_are_equal_are_tasks_of_which_no_two_are_equal() -> None:
    """TRL's examples repeat one prompt a thousand times, because `reset` draws the game."""
    rows = [{"prompt": "Win."}, {"prompt": "Lose."}, {"prompt": "Win."}]
    first, other, second = (t.task_id for t in row_tasks("game", rows, "data/rows.jsonl"))
    assert first.endswith("-rows-1")
    assert second == first.removesuffix("1") + "2"
    assert not other.endswith("-1")
    [held, *_] = row_tasks("game", rows, "data/rows.jsonl", "heldout")
    assert held.task_id.endswith("-heldout-1")


def test_a_row_may_have_a_column_task_id_as_servers_of_openenv_take_one() -> None:
    [task] = row_tasks("game", [{"task_id": "easy"}], "rows.jsonl")
    assert task.info == {"task_id": "easy"}
    assert task.task_id != "easy"


def test_a_file_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    write_tasks(Sound, seed_tasks("game", 2, 0), out, force=False, again="again")
    with pytest.raises(BadInput, match="`again` replaces it"):
        write_tasks(Sound, seed_tasks("game", 1, 0), out, force=False, again="again")
    assert len(out.read_text().splitlines()) == 2
    write_tasks(Sound, seed_tasks("game", 1, 5), out, force=True, again="again")
    assert json.loads(out.read_text())["task_id"] == "game-000005"


def test_a_class_that_does_not_take_the_row_leaves_nothing_written(tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    with pytest.raises(BadInput, match="takes no `\\*\\*row`"):
        write_tasks(Narrow, seed_tasks("game", 2, 0), out, force=False, again="again")
    assert not out.exists()


def test_two_files_of_one_repeated_row_share_no_task(tmp_path: Path) -> None:
    files = [tmp_path / "pool.jsonl", tmp_path / "heldout.jsonl"]
    sound = f"{FAULTY}:Sound"
    register_environments({"game": EnvSettings(use=sound, passes="reward >= 1")}, ROOT)
    try:
        for file in files:
            made = row_tasks("game", [{"prompt": "Win."}] * 3, "rows.jsonl", file.stem)
            write_tasks(Sound, made, file, force=False, again="again")
        check_disjoint(*files)
    finally:
        register_environments({}, ROOT)
