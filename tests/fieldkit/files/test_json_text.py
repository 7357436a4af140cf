"""JSON of any shape is read, or refused by where it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from fieldkit.errors import BadInput
from fieldkit.files.json_text import MOST_LEVELS, parse_json, parse_typed, whole_text

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1,\n "b": }', r"f\.json:2: not valid JSON"),
        ("[" * 100_000, r"f\.json:1: nested more than 100 levels deep"),
        ('{"a":' * 100_000, "nested more than"),
        ("[" * (MOST_LEVELS + 2) + "]" * (MOST_LEVELS + 2), "nested more than"),
        ("9" * 5000, r"f\.json:1: a number has too many digits"),
        (b"\xff\xfe\x00", r"f\.json:1: not "),
        ("\ud800", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_what_cannot_be_read_names_file_line_and_reason(text: str | bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_json(text, "f.json", names_line=False)


def test_the_line_of_a_record_is_not_named_twice() -> None:
    with pytest.raises(BadInput, match=r"^f\.jsonl:7: not valid JSON"):
        parse_json("{", "f.jsonl:7")


def test_half_a_surrogate_pair_is_read_as_a_policy_may_write_one() -> None:
    assert parse_json('"\\ud800"', "f:1") == "\ud800"


def test_nesting_up_to_the_limit_is_read() -> None:
    text = "[" * MOST_LEVELS + "]" * MOST_LEVELS
    assert parse_json(text, "f:1")


def test_nothing_else_reads_json() -> None:
    readers = {"json.load", "json.loads", "pydantic_core.from_json", ".validate_json"}
    found = {
        str(path.relative_to(ROOT))
        for package in ("fieldkit", "reward", "rollout", "trainer", "scripts")
        for path in (ROOT / package).rglob("*.py")
        if readers & set(_named(ast.parse(path.read_text())))
    }
    # These processes have the standard library alone.
    workers = {"rollout/envs/foreign/foreign_worker.py", "rollout/envs/sql/sql_worker.py"}
    assert found == {"fieldkit/files/json_text.py", *workers}


def _named(tree: ast.AST) -> Iterator[str]:
    """What a module imports by name, and the attributes that it takes, of names and of anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield f".{node.attr}"
            if isinstance(node.value, ast.Name):
                yield f"{node.value.id}.{node.attr}"


def test_a_value_of_a_type_is_read_at_once_or_not_at_all() -> None:
    numbers = TypeAdapter(list[int])
    assert parse_typed("[1, 2]", numbers) == [1, 2]
    assert [parse_typed(text, numbers) for text in ('["one"]', "[1", "", "{}")] == [None] * 4


def test_half_of_a_surrogate_pair_is_left_out_of_a_whole_text() -> None:
    assert whole_text("a\ud800b \U0001f600") == "a?b \U0001f600"
