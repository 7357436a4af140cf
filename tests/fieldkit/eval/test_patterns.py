"""A pattern of Python's `re` means the same in the engine that can be stopped."""

import re
import sys
import unicodedata
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.eval.patterns import compile_pattern, only_texts

# `regex` reads most of these otherwise when it is given them as they stand.
SEARCHES = [
    ("a{e}", "a"),
    ("a{e}", "a{e}"),
    ("(?:cat){s}", "cut"),
    ("(?:cat){s<=1}", "cut"),
    ("(?:cat){s<=1}", "cat{s<=1}"),
    ("cat{d}", "ca"),
    ("cat{i}", "cart"),
    ("a{,2}b", "aab"),
    ('{"a": 1}', '{"a": 1}'),
    ("[[:alpha:]]", "q"),
    ("[[:alpha:]]", "a]"),
    ("[[:digit:]]+", "12"),
    ("[a-z--b]", "-"),
    ("[a||b]", "|"),
    ("[]a]", "]"),
    (r"\w", "\u0301"),
    (r"\s", "\x1f"),
    (r"[^\s]", "\x1c"),
    (r"[\W_]", "_"),
    (r"[^\W_]", "_"),
    (r"[\s\S]", "x"),
    (r"(?a)\w", "\u00e9"),
    (r"(?a:\w)\w", "a\u00e9"),
    (r"(?i)STRASSE", "stra\u00dfe"),
    ("(?i:A)b", "ab"),
    ("(?i)a(?-i:B)", "AB"),
    ("(?i)[^k]", "\u212a"),
    (r"\Bx", "ax"),
    (r"\bversion\b", "a version."),
    (r"\B", ""),
    (r"(a)(?P<n>b)\2(?P=n)", "abbb"),
    ("(a)?(?(1)b|c)", "c"),
    ("(a)?(?(1)b)", "ab"),
    ("(?<=a)b(?<!c)(?=d)(?!e)", "abd"),
    ("a++b", "aab"),
    ("a*?b", "aab"),
    ("(?>a+)b", "aab"),
    ("(?x) a b # c", "ab"),
    ("(?s)a.b", "a\nb"),
    ("a.b", "a\nb"),
    (r"\Aa\Z", "a\n"),
    ("^a$", "a\n"),
    ("(?m)^b$", "a\nb\nc"),
    ("(a|b|)", ""),
    ("x{1000}", "x" * 1000),
    (r"\N{BULLET}", "\u2022"),
]


@pytest.mark.parametrize(("pattern", "text"), SEARCHES)
def test_a_pattern_finds_what_re_finds(pattern: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = re.search(pattern, text)
    found = compile_pattern(pattern).search(text)
    assert (found and found.span()) == (expected and expected.span())
    assert (found and found.groups()) == (expected and expected.groups())


@pytest.mark.parametrize("pattern", [r"\w", r"\W", r"\s", r"\S", r"\d", r"\D", r"[^\w.]", "."])
def test_a_class_holds_the_characters_that_it_holds_in_re(pattern: str) -> None:
    # Characters of a Unicode version that Python does not know yet are left out.
    text = map(chr, range(sys.maxunicode + 1))
    known = "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))
    assert compile_pattern(pattern).findall(known) == re.findall(pattern, known)


PIECES = st.sampled_from(
    ["a", "b", r"\w", r"\W", "[ab]", "[^a]", "(a|b)", "(?:b)", "^", "$", r"\b", "{e}", "{1}", "."]
)
REPEATS = st.sampled_from(["", "", "*", "+?", "?", "{2}", "{,1}"])


@given(st.lists(st.tuples(PIECES, REPEATS), max_size=6), st.text("ab\n{}e1 ", max_size=8))
def test_any_pattern_finds_what_re_finds(pieces: list[tuple[str, str]], text: str) -> None:
    pattern = "".join(map("".join, pieces))
    try:
        expected = re.search(pattern, text)
    except re.error:
        return
    found = compile_pattern(pattern).search(text)
    assert (found and found.span()) == (expected and expected.span())


@pytest.mark.parametrize("pattern", [r"\p{L}", "(unclosed", r"(?|a)", r"\K", "(?R)", r"\L<a>"])
def test_what_re_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(re.error):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"\Atotal: 12\n\Z", ("total: 12\n",)),
        (r"^a\.b$", ("a.b", "a.b\n")),
        (r"\A\Z", ("",)),
        (r"\A(?:ab)[c]\Z", ("abc",)),
    ],
)
def test_a_pattern_that_spells_a_file_out_gives_its_text(
    pattern: str, texts: tuple[str, ...]
) -> None:
    assert only_texts(pattern) == texts
    assert all(re.search(pattern, text) for text in texts)


@pytest.mark.parametrize(
    "pattern",
    [
        "one",
        "^one",
        r"one\Z",
        "",
        "^",
        r"\Aone.\Z",
        r"(?i)^one$",
        r"(?m)^one$",
        "^one$|two",
        "^(o)$",
    ],
)
def test_a_pattern_that_leaves_anything_open_gives_none(pattern: str) -> None:
    assert only_texts(pattern) == ()
