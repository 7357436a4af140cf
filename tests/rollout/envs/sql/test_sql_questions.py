"""Questions with gold queries: what every template asks, what is no question, and the splits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.sql.locked_db import LockedDatabase
from rollout.envs.sql.sql_catalog import Use
from rollout.envs.sql.sql_questions import gold_of, write_questions
from rollout.envs.sql.sql_rewards import (
    correctness_of,
)
from rollout.envs.sql.sql_templates import (
    HELDOUT_TEMPLATES,
    POOL_TEMPLATES,
    TEMPLATES_OF,
    Question,
)
from rollout.envs.sql.sql_worth import oracle_record, worth_table
from rollout.tasks import decode_tasks
from scripts.base.checkout import ROOT
from tests.rollout.envs.sql.library import library, write_library

COMMITTED = {use: ROOT / f"data/sql/{use.value}.jsonl" for use in Use}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_library(tmp_path)


def asked(use: Use, folder: Path, count: int) -> dict[str, Task]:
    """Questions about the library by their text."""
    tasks = write_questions(use, count, folder, [library(use)])
    return {task.prompt.partition(" Answer with")[0]: task for task in tasks}


def test_every_template_asks_something_of_a_database_that_has_all_roles(folder: Path) -> None:
    for use, templates in TEMPLATES_OF.items():
        found = asked(use, folder, 2 * len(templates))
        assert {task.info["template"] for task in found.values()} == set(templates)


def test_the_answers_are_those_that_a_person_counts(folder: Path) -> None:
    pool, heldout = asked(Use.POOL, folder, 34), asked(Use.HELDOUT, folder, 50)
    answers = {text: task.info["answer"] for text, task in (heldout | pool).items()}
    assert answers["How many books are there?"] == 7
    assert answers["How many books have the kind novel?"] == 3
    assert answers["What is the average pages of the books?"] == 300
    assert answers["What is the highest pages of a book?"] == 500
    assert answers["Which book has the highest pages? Give its title."] == "Elm"
    assert answers["Which home do most authors have?"] == "Wales"
    assert answers["What is the number of books of the author with the name Ada?"] == 3
    assert answers["What is the average pages of the books of the author with the name Ben?"] == 450
    assert answers["What percentage of the authors has the home Wales?"] == pytest.approx(200 / 3)
    first = answers["Which three books have the highest pages? Give each title."]
    assert sorted(first) == ["Cedar", "Date", "Elm"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT home FROM authors WHERE name < 'C'",  # two rows
        "SELECT pages FROM books WHERE title = 'Fir'",  # NULL
        "SELECT title FROM books WHERE title LIKE 'Gum%'",  # a comma would part a list
        "SELECT title FROM books WHERE title = 'Zelkova'",  # no row
        "SELECT count(*) FROM books WHERE kind = 'letter'",  # 0, which a policy may guess
    ],
)
def test_what_has_no_single_clear_answer_is_no_question(folder: Path, sql: str) -> None:
    assert gold_of(Question("?", sql), LockedDatabase(folder / "library.sqlite")) is None


def test_a_gold_query_that_does_not_run_is_an_error_that_shows_it(folder: Path) -> None:
    with pytest.raises(
        BadInput, match=r"library\.sqlite: SELECT missing FROM books: no such column"
    ):
        gold_of(
            Question("?", "SELECT missing FROM books"), LockedDatabase(folder / "library.sqlite")
        )


def test_equal_databases_give_equal_questions(folder: Path) -> None:
    assert asked(Use.POOL, folder, 20) == asked(Use.POOL, folder, 20)


def test_more_questions_than_there_are_is_an_error_that_counts_them(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"the pool databases give \d+ questions, not 10000"):
        asked(Use.POOL, folder, 10_000)


# --- the committed files --------------------------------------------------------------------------


def test_no_database_is_in_two_splits_and_the_pool_has_no_held_out_template() -> None:
    databases = {}
    for use, file in COMMITTED.items():
        tasks = decode_tasks(file)
        databases[use] = {task.info["database"] for task in tasks}
        assert {t.info["unseen_template"] for t in tasks} == {False} | {use is not Use.POOL}
        for task in tasks:
            assert task.info["unseen_template"] == (task.info["template"] not in POOL_TEMPLATES)
    assert not databases[Use.POOL] & databases[Use.HELDOUT]
    assert not databases[Use.DEVELOPMENT] & (databases[Use.POOL] | databases[Use.HELDOUT])
    heldout = {task.info["template"] for task in decode_tasks(COMMITTED[Use.HELDOUT])}
    assert set(HELDOUT_TEMPLATES) < heldout


def test_no_demonstration_asks_what_a_split_asks() -> None:
    demos = {task.prompt for task in decode_tasks(ROOT / "data/sql/demonstrations.jsonl")}
    for file in COMMITTED.values():
        assert demos.isdisjoint(task.prompt for task in decode_tasks(file))


@pytest.mark.envs
def test_the_committed_questions_are_what_the_real_databases_give() -> None:
    for use, file in COMMITTED.items():
        committed = list(decode_tasks(file))
        assert write_questions(use, len(committed)) == committed


@pytest.mark.envs
def test_the_oracle_answers_every_committed_question() -> None:
    for file in COMMITTED.values():
        wrong = [t.task_id for t in decode_tasks(file) if not correctness_of(oracle_record(t))]
        assert not wrong


@pytest.mark.envs
def test_the_page_shows_what_each_part_pays_on_the_development_questions() -> None:
    page = (ROOT / "docs/environments-sql.md").read_text(encoding="utf-8")
    assert worth_table(decode_tasks(COMMITTED[Use.DEVELOPMENT])) in page
