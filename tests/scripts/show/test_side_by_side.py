"""`grpo transcripts`: which tasks are shown, and that what is shown is what was played."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fieldkit.records import Task
from scripts.show.side_by_side import Kind, as_code, chosen, transcripts_page
from tests.scripts.show.test_show import make_run
from tests.scripts.typed import BAD_INPUT, grpo


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(asyncio.run(make_run(tmp_path_factory.mktemp("sides"))))


def tasks_of(*kinds: Kind) -> tuple[list[Task], dict[str, Kind]]:
    """Tasks 0, 1, … of these kinds."""
    tasks = [Task(str(i), "shell", "", {}) for i, _ in enumerate(kinds)]
    return tasks, {task.task_id: kind for task, kind in zip(tasks, kinds, strict=True)}


def test_the_first_of_each_kind_comes_before_the_second_of_any() -> None:
    kinds = (Kind.NEVER, Kind.NEVER, Kind.WON, Kind.NEVER, Kind.WON, Kind.ALWAYS)
    tasks, by_id = tasks_of(*kinds)
    ids = [[t.task_id for t in chosen(tasks, by_id, most)] for most in (3, 4, 5, 9)]
    assert ids == [
        ["2", "5", "0"],
        ["2", "4", "5", "0"],
        ["2", "4", "5", "0", "1"],
        ["2", "4", "5", "0", "1", "3"],
    ]


def section(page: str, task_id: str) -> dict[str, list[str]]:
    """A task's table: the cells of each row after its name."""
    _, _, rest = page.partition(f": {task_id}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {row[0]: row[1:] for row in rows[2:]}


def test_three_players_stand_next_to_each_other_with_what_they_did(run: str) -> None:
    page = transcripts_page(run, 6)
    assert "| random policy | warm start | step 1 |" in page
    assert "> Write the word done into alpha.txt." in page
    alpha = section(page, "alpha")
    assert alpha["passed"] == ["no", "yes", "yes"]
    assert alpha["ended"][1:] == ["MAX_TURNS, 4 turns", "TASK_COMPLETE, 2 turns"]
    assert alpha["1"][1].startswith("`echo done > alpha.txt`")
    assert alpha["2"][1].startswith("`ls` 3 times<br>→ `")
    assert "alpha.txt" in alpha["2"][1]


def test_the_kinds_count_every_held_out_task(run: str) -> None:
    page = transcripts_page(run, 1)
    assert "| passed before and after | 1 | 1 |" in page
    assert "| passed neither before nor after | 1 | 0 |" in page


def test_equal_runs_give_equal_pages_and_the_run_stays_as_it_was(run: str) -> None:
    before = {p: p.stat().st_mtime_ns for p in Path(run).rglob("*")}
    assert transcripts_page(run, 6) == transcripts_page(run, 6)
    assert {p: p.stat().st_mtime_ns for p in Path(run).rglob("*")} == before


def test_text_that_would_break_a_table_is_shown_and_breaks_nothing() -> None:
    assert as_code(["a | b"], 99) == "`a \\| b`"
    assert as_code(["`x`"], 99) == "`` `x` ``"
    assert as_code(["one\n\ntwo"], 99) == "`one`<br>`two`"


def test_a_run_whose_episodes_are_not_here_says_so_and_names_the_command() -> None:
    ended = grpo("transcripts", "first-night")
    assert ended.returncode == BAD_INPUT
    assert "does not have the arm's episodes, and nothing here can restore them" in ended.stderr
    assert "grpo table " in ended.stderr
    assert "grpo pack" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
