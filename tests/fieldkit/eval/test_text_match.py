from __future__ import annotations

import math

import pytest

from fieldkit.eval import is_refusal, numeric_match


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (".5", "0.5"),
        ("-.25", "-0.25"),
        ("no.5 of 7", "5"),
        ("..5", "5"),
        ("1e5", "100000"),
        ("2.5E-3 m", "0.0025"),
        ("3e4x", "3"),
        ("8e", "8"),
        ("it is −5", "-5"),
        ("1,000.5", "1000.5"),
    ],
)
def test_a_number_is_read_in_the_ways_in_which_it_is_written(text: str, number: str) -> None:
    assert numeric_match(text, number, rel_tolerance=0) == 1.0


def test_a_number_that_no_float_holds_matches_nothing() -> None:
    assert numeric_match("1e999", "1e999") == numeric_match("1e999", "1") == 0.0


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("I am able to answer: it is 42.", False),
        ("I am not able to answer.", True),
        ("I'm not able to say.", True),
        ("I am unable to answer.", True),
        ("I’m unable to find it.", True),
        ("I cannot verify that.", True),
    ],
)
def test_who_is_able_to_answer_refuses_nothing(text: str, refuses: bool) -> None:
    assert is_refusal(text) is refuses


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="rel_tolerance"):
        numeric_match("1", "1", rel_tolerance=tolerance)
