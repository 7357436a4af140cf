"""Patterns that would hang a grader, and innocent ones that look like them."""

import re
import time

import pytest

from rollout.envs.regex_check import only_texts, regex_fault

CATASTROPHIC = [
    r"^(a+)+$",
    r"(a*)*b",
    r"^(\w+\s?)*$",
    r"^key: (\d+)+;$",
    r"(x+x+)+y",
    r'^"([^"]+)+";$',
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"^(?:name|(\w+)+)=$",
    r".*.*.*.*;$",
    r"(?:ab|ab)+;",
    r"(a|b|ab)*c",
    r"(?i)(xa|XA)+!",
    r"^(?=(\w+)+:)",
]

INNOCENT = [
    r"done",
    r"^total: \d+$",
    r"^(\d+,)*\d+$",
    r"(?:[a-z]+-)+[0-9]{4}",
    r"\A[^\n]*\n\s*$",
    r"^\s*#+\s+\w+(?:\s+\w+){0,5}\s*\Z",
    r"(?s)first.*second.*third",
    r"(?i)error: .+",
    r"(?P<key>\w+)=(?P=key)",
    r"^[^=]+=[^=]+$",
    r"[]x-]+|[^\]]*",
    r"(\w+\s*)+",
    r"\bversion\b: (\d+\.){2}\d+",
    r"x{1000}",
    r"(?<=a)b+(?!c)$",
    r"(?m)^- .+$",
    r"(?>a+)+b",
    r"",
]


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_pattern_that_explodes_is_found(pattern: str) -> None:
    fault = regex_fault(pattern)
    assert fault is not None
    assert "catastrophic" in fault
    assert repr(pattern) in fault


@pytest.mark.parametrize("pattern", INNOCENT)
def test_an_innocent_pattern_is_let_through_quickly(pattern: str) -> None:
    began = time.process_time()
    assert regex_fault(pattern) is None
    assert time.process_time() - began < 0.5


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
