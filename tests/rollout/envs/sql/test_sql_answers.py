"""When a written answer is right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.envs.sql.sql_answers import closeness, elements_of, gives, is_right, looks_like


@pytest.mark.parametrize(
    ("given_answer", "gold"),
    [
        ("42", 42),
        ("42.0", 42),
        (" 1,234 ", 1234),
        ("$1234", 1234),
        ("17.6%", 17.647),
        ("17.6", 17.647058823529413),
        ("1e3", 1000),
        ("-.5", -0.5),
        ("Elm", "Elm"),
        ('"elm."', "Elm"),
        ("JetBlue  Airways", "JetBlue Airways"),
        ("Elm, Date, Cedar", ["Cedar", "Date", "Elm"]),
        ('["Elm", "Date", "Cedar"]', ["Cedar", "Date", "Elm"]),
        ("Elm; Date; Cedar", ["Cedar", "Date", "Elm"]),
        ("[3, 1, 2]", [1, 2, 3]),
        ("1, 1, 2", [1, 2, 1]),
    ],
)
def test_an_answer_is_right_however_it_is_written(given_answer: str, gold: Any) -> None:
    assert is_right(given_answer, gold)


@pytest.mark.parametrize(
    ("given_answer", "gold"),
    [
        ("", 42),
        ("43", 42),
        ("42.1", 42),  # a whole number has to be equal
        ("17.4", 17.647),  # more than half a percent off
        ("about 42", 42),
        ("42 or 43", 42),
        ("inf", 42),
        ("nan", 42),
        ("Elms", "Elm"),
        ("Elm, Date", ["Cedar", "Date", "Elm"]),
        ("Elm, Date, Cedar, Ash", ["Cedar", "Date", "Elm"]),
        ("1, 2, 2", [1, 1, 2]),
    ],
)
def test_an_answer_that_says_something_else_is_wrong(given_answer: str, gold: Any) -> None:
    assert not is_right(given_answer, gold)


@given(st.text(max_size=60), st.one_of(st.integers(), st.floats(allow_nan=False), st.text()))
def test_no_answer_of_a_policy_is_an_error(text: str, gold: Any) -> None:
    assert is_right(text, gold) in (True, False)
    assert looks_like(text, gold) in (True, False)
    assert isinstance(elements_of(text), list)


def test_a_result_gives_the_answer_in_any_column_and_with_nothing_more() -> None:
    assert gives([(1, "Elm")], "Elm")
    assert gives([("Date", 1), ("Elm", 2)], ["Elm", "Date"])
    assert not gives([("Elm",), ("Date",)], "Elm")
    assert not gives([], "Elm")
    assert not gives([(None,)], 0)


def test_a_form_is_a_number_a_text_or_a_list() -> None:
    assert looks_like("7", 42)
    assert not looks_like("seven", 42)
    assert looks_like("Ash", "Elm")
    assert not looks_like("7", "Elm")
    assert looks_like("a, b", ["c", "d", "e"])
    assert not looks_like("a", ["c", "d"])
    assert not looks_like(" ", "Elm")


def test_closeness_is_a_quarter_for_rows_a_half_for_values_a_quarter_for_size() -> None:
    assert closeness([(42,)], 42) == 1.0
    assert closeness([], 42) == 0.0
    # One row as wanted, no value in common, and a number e - 1 away: 1 / (1 + ln e) = 1/2.
    assert closeness([(43.718281828459045,)], 42) == pytest.approx(0.25 + 0.25 / 2)
