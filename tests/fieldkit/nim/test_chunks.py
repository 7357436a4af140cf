from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.errors import BadInput
from fieldkit.nim import DEFAULT_CHUNK_TOKENS, chunk_text, estimate_tokens

TEXTS = st.text(st.sampled_from("aB.! \n(ü"), max_size=200)
BUDGETS = st.integers(1, 12)


def without_space(text: str) -> str:
    return "".join(text.split())


@given(TEXTS, BUDGETS)
def test_a_chunk_is_within_the_budget_and_a_slice_of_the_text(text: str, budget: int) -> None:
    chunks = chunk_text(text, max_tokens=budget)
    assert chunks
    at = 0
    for chunk in chunks:
        assert estimate_tokens(chunk) <= budget
        at = text.index(chunk, at) + len(chunk)


@given(TEXTS, BUDGETS)
def test_chunks_lose_nothing_but_whitespace_between_them(text: str, budget: int) -> None:
    chunks = chunk_text(text, max_tokens=budget)
    assert without_space("".join(chunks)) == without_space(text)


@given(TEXTS)
def test_what_fits_is_one_chunk(text: str) -> None:
    assert chunk_text(f"a{text}b", max_tokens=DEFAULT_CHUNK_TOKENS) == [f"a{text}b"]


def test_a_chunk_ends_where_the_text_has_its_largest_gap() -> None:
    text = "One two.\n\nThree four. Five six seven eight."
    assert chunk_text(text, max_tokens=3) == ["One two.", "Three four.", "Five six", "seven eight."]


def test_a_long_paragraph_does_not_begin_in_the_chunk_before_it() -> None:
    assert chunk_text("a\n\nB. Cccc dddd.", max_tokens=2) == ["a", "B. Cccc", "dddd."]


def test_a_budget_of_nothing_is_named() -> None:
    with pytest.raises(BadInput, match="max_tokens is 0"):
        chunk_text("a", max_tokens=0)
