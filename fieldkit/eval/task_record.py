"""What one policy did on each task, as a script has it: records in a file or a list, checked.

`fieldkit.eval.base_comparison` counts and compares them. A record that is not in order is an error
that names its line: left out, or taken for a failure, it would count for or against a policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.passk import whole_number
from fieldkit.files.atomic import read_objects

Rows = Iterable[Mapping[str, Any]] | str | Path
"""Records of one policy, one a task: dicts, or the path of a JSONL file."""


@dataclass(frozen=True)
class TaskRecord:
    """One task's record, checked. where: file and line, or its place in a list."""

    where: str
    task_id: str
    passed: bool
    n_passed: int
    n_total: int
    assertions: tuple[tuple[str, bool], ...]
    stopped: str
    turns: float
    seconds: float


def read_records(rows: Rows) -> Iterator[TaskRecord]:
    """The records in order. Raises `BadInput` that names the line, or the place in a list."""
    if isinstance(rows, str | Path):
        for where, row in read_objects(Path(rows)):
            yield _record(row, where)
        return
    for i, one in enumerate(rows):
        yield _record(one, f"record {i}")


def _record(row: Any, where: str) -> TaskRecord:
    if not isinstance(row, Mapping):
        raise BadInput(f"{where}: expected an object, found {type(row).__name__}")
    grade = row.get("final_grade")
    if row.get("task_id") in (None, "") or not isinstance(grade, Mapping):
        raise BadInput(f"{where}: a record needs task_id and final_grade")
    try:
        found = TaskRecord(
            where=where,
            task_id=str(row["task_id"]),
            passed=flag(grade["passed"]),
            n_passed=whole_number(grade["n_passed"]),
            n_total=whole_number(grade["n_total"]),
            assertions=tuple(
                (str(a["kind"]), flag(a["passed"])) for a in grade.get("assertions") or ()
            ),
            stopped=str(row.get("stopped") or "?"),
            turns=_measured(row.get("n_turns")),
            seconds=_measured(row.get("wall_seconds")),
        )
    except KeyError as e:
        raise BadInput(f"{where}: final_grade: the key {e} is missing") from None
    except (TypeError, ValueError, OverflowError) as e:
        raise BadInput(f"{where}: not a record ({e})") from None
    if not 0 <= found.n_passed <= found.n_total:
        raise BadInput(f"{where}: {found.n_passed} of {found.n_total} assertions cannot hold")
    return found


def flag(value: Any) -> bool:
    """Whether something passed. Raises `ValueError` for what is neither true nor false, 1 nor 0."""
    if value not in (0, 1):
        raise ValueError(f"{value!r} is neither true nor false")
    return bool(value)


def _measured(value: Any) -> float:
    """A number of turns or seconds; 0 for None."""
    found = float(value or 0)
    if not (math.isfinite(found) and found >= 0):
        raise ValueError(f"{value!r} is not a finite number of 0 or more")
    return found


def paired(
    first: Sequence[TaskRecord], second: Sequence[TaskRecord]
) -> list[tuple[TaskRecord, TaskRecord]]:
    """Both records of each task, in the order of the first policy. Raises `BadInput` where the two
    did not play the same tasks, each once and with the same assertions."""
    if not first:
        raise BadInput("the baseline has no record: there is nothing to compare")
    for name, records in (("baseline", first), ("candidate", second)):
        seen: set[str] = set()
        for r in records:
            if r.task_id in seen:
                raise BadInput(f"{r.where}: the {name} has task {r.task_id} more than once")
            seen.add(r.task_id)
    after = {r.task_id: r for r in second}
    odd = sorted({r.task_id for r in first} ^ after.keys())
    if odd:
        there = "candidate" if odd[0] in after else "baseline"
        raise BadInput(
            f"not the same tasks: {odd[0]} is in the {there} only ({len(odd)} tasks are in one"
            " only); evaluate both on the same file"
        )
    for r in first:
        if r.n_total != after[r.task_id].n_total:
            raise BadInput(
                f"task {r.task_id} has {r.n_total} assertions in the baseline and "
                f"{after[r.task_id].n_total} in the candidate: the task changed between the two"
            )
        kinds = [sorted(kind for kind, _ in x.assertions) for x in (r, after[r.task_id])]
        if all(kinds) and kinds[0] != kinds[1]:
            raise BadInput(
                f"task {r.task_id} has other assertions in the candidate than in the baseline: the "
                "task changed between the two"
            )
    return [(r, after[r.task_id]) for r in first]
