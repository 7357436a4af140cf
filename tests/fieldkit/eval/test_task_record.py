"""Records are read whole, or the one that is not in order is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, MissingFile
from fieldkit.eval.task_record import read_records

GRADE = {"passed": True, "n_passed": 1, "n_total": 2}


def record(task_id: Any) -> dict[str, Any]:
    return {"task_id": task_id, "final_grade": GRADE, "n_turns": 3, "wall_seconds": 1.5}


def test_a_task_id_may_be_a_number_and_0_too() -> None:
    assert [r.task_id for r in read_records(map(record, range(3)))] == ["0", "1", "2"]
    for none in (None, ""):
        with pytest.raises(BadInput, match="record 0: a record needs task_id"):
            list(read_records([record(none)]))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{torn", "base.jsonl:2: "),
        ("[1]", "base.jsonl:2: expected an object, found list"),
        ('{"task_id": "b"}', "base.jsonl:2: a record needs task_id and final_grade"),
        ('{"task_id": "b", "final_grade": {}}', "base.jsonl:2: final_grade: the key 'passed'"),
        (
            '{"task_id": "b", "final_grade": {"passed": 1, "n_passed": "x", "n_total": 1}}',
            "base.jsonl:2: not a record",
        ),
        *(
            (json.dumps(record("b") | wrong), f"base.jsonl:2: {words}")
            for wrong, words in (
                ({"n_turns": float("nan")}, "not a record .nan is not a finite number"),
                ({"wall_seconds": -1}, "not a record .-1 is not a finite number"),
                ({"wall_seconds": 10**400}, "not a record .int too large"),
                ({"final_grade": GRADE | {"n_passed": 7, "n_total": 1}}, "7 of 1 assertions"),
                ({"final_grade": GRADE | {"n_passed": 0.5}}, "not a record .0.5 is not a whole"),
                ({"final_grade": GRADE | {"passed": "false"}}, "not a record .'false' is neither"),
            )
        ),
        (
            '{"task_id": "b", "final_grade": {"passed": 1, "n_passed": 1e999, "n_total": 1}}',
            "base.jsonl:2: not a record .inf is not a whole number",
        ),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "base.jsonl"
    path.write_text(json.dumps(record("a")) + f"\n{line}\n")
    with pytest.raises(BadInput, match=said):
        list(read_records(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"gone\.jsonl: no such file"):
        list(read_records(tmp_path / "gone.jsonl"))


@pytest.mark.parametrize("one", [3, [], None])
def test_a_record_that_is_no_object_is_named_by_its_place(one: Any) -> None:
    with pytest.raises(BadInput, match="record 1: expected an object, found"):
        list(read_records([record("a"), one]))
