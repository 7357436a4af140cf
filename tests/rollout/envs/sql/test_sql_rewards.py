"""What the parts of the reward pay, on numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rollout.envs.sql.locked_db import Result
from rollout.envs.sql.sql_rewards import (
    Call,
    Record,
    correctness,
    correctness_of,
    operational,
    operational_of,
    progress,
    progress_of,
    published_operational_of,
    published_progress,
    published_progress_of,
)

PAGES = frozenset({("books", "pages")})
RIGHT = Result(("max(pages)",), ((500,),), read=PAGES)
SAME_COLUMNS = Result(("avg(pages)",), ((300.0,),), read=PAGES)
OTHER = Result(("count(*)",), ((7,),), read=frozenset({("books", "")}))


def record(*calls: Call, given: str | None = None, gold: object = 500) -> Record:
    return Record(gold, lambda: PAGES, list(calls), given)


def query(result: Result, **flags: bool) -> Call:
    return Call("query", "SELECT", result=result, **flags)


def test_correctness_is_one_for_the_right_answer_and_nothing_else() -> None:
    assert correctness_of(record(given="500")) == 1.0
    assert correctness_of(record(given="501")) == 0.0
    assert correctness_of(record(query(RIGHT))) == 0.0


def test_progress_is_that_of_the_best_query_and_only_for_who_answers() -> None:
    assert progress_of(record(query(RIGHT), query(OTHER), given="7")) == 1.0
    assert progress_of(record(query(SAME_COLUMNS), query(OTHER), given="7")) == 0.5
    assert progress_of(record(query(OTHER), given="7")) == 0.0
    assert progress_of(record(given="500")) == 0.0
    assert progress_of(record(query(RIGHT), query(SAME_COLUMNS))) == 0.0


def test_a_result_that_was_cut_is_not_the_answer() -> None:
    cut = Result(("pages",), ((500,),), more=True, read=frozenset({("books", "title")}))
    assert progress_of(record(query(cut), given="500")) == 0.0


def test_without_a_gold_query_no_columns_are_the_right_ones() -> None:
    unknown = Record(500, frozenset, [query(Result(("1",), ((1,),)))], "1")
    assert progress_of(unknown) == 0.0


def test_steps_cost_and_an_answer_that_was_shown_earns() -> None:
    shown = record(query(RIGHT), Call("answer", "500"), given="500")
    assert operational_of(shown) == pytest.approx(-0.005 + (-0.005 + 0.02 + 0.01))
    guessed = record(Call("answer", "17"), given="17")
    assert operational_of(guessed) == pytest.approx(-0.005 + 0.02)
    text = record(Call("answer", "many"), given="many")
    assert operational_of(text) == pytest.approx(-0.005)
    wrong = record(query(Result(error="no"), failed=True), query(RIGHT, repeated=True))
    assert operational_of(wrong) == pytest.approx(-0.005 - 0.01 - 0.005 - 0.01)
    assert operational_of(record()) == 0.0


def test_the_worst_is_fifteen_times_the_same_failure() -> None:
    first = Call("describe", "x", failed=True)
    worst = [first, *[Call("describe", "x", failed=True, repeated=True)] * 14]
    assert operational_of(record(*worst)) == pytest.approx(-0.365)


def test_a_list_was_shown_where_each_of_its_elements_was() -> None:
    rows = Result(("title",), (("Elm",), ("Date",), ("Ash",)))
    shown = record(query(rows), Call("answer", "elm, date"), gold=["Elm", "Date"])
    half = record(query(rows), Call("answer", "elm, fig"), gold=["Elm", "Date"])
    assert operational_of(shown) - operational_of(half) == pytest.approx(0.01)


def test_the_published_parts_pay_queries_that_never_lead_to_an_answer() -> None:
    idle = record(query(SAME_COLUMNS), query(OTHER))
    assert published_progress_of(idle) > 0
    # Two queries that run and show something new: 2 x (0.02 + 0.01 - 0.005).
    assert published_operational_of(idle) == pytest.approx(0.05)
    assert progress_of(idle) == 0.0
    assert operational_of(idle) == pytest.approx(-0.01)


def test_trl_calls_each_part_with_the_environments_and_the_columns() -> None:
    environments = [
        SimpleNamespace(record=record(query(RIGHT), given="500")),
        SimpleNamespace(record=record()),
    ]
    given: dict[str, Any] = {
        "environments": environments,
        "database": ["library"] * 2,
        "prompts": ["?"] * 2,
    }
    assert correctness(**given) == [1.0, 0.0]
    assert progress(**given) == [1.0, 0.0]
    assert operational(**given) == [-0.005, 0.0]
    assert published_progress(**given) == [1.0, 0.0]
