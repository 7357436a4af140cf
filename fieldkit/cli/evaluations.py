"""`fieldkit compare` and `fieldkit passk`: what two policies did on the same tasks, and pass@k.

A file holds one JSON object a line: a record as `MatchedBaseComparison` takes them, a row with n
and passed, or a trajectory as the loop keeps them. A folder is that of a stored arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldkit.cli.columns import show
from fieldkit.errors import BadInput, MissingFile
from fieldkit.files.atomic import PACKED, read_objects
from fieldkit.files.sharded import stored

if TYPE_CHECKING:
    from fieldkit.records import Trajectory

_ARM_FILES = ("trajectories.jsonl", "trajectories.jsonl.xz")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_RECORDS = "A JSONL file of records, or the folder of a stored arm"
_ROWS = "The same, or a JSONL file of rows with task_id, n and passed"


def compare(
    baseline: Annotated[Path, typer.Argument(metavar="A", help=_RECORDS)],
    candidate: Annotated[Path, typer.Argument(metavar="B", help="The same of another policy")],
    as_json: Json = False,
) -> None:
    """Show B minus A on the same tasks: passes, assertions, turns, time, with tests and intervals.

    Of a stored arm the first attempt at each task counts; a file of records has one a task.
    """
    from fieldkit.eval.base_comparison import MatchedBaseComparison

    try:
        found = MatchedBaseComparison().compare(_rows(baseline), _rows(candidate))
    except BadInput as e:
        named = str(e).startswith((str(baseline), str(candidate)))
        where = "" if named else f"{baseline} and {candidate}: "
        raise BadInput(f"{where}{e}") from None
    if as_json:
        show([], found.to_dict(), as_json=True)
    else:
        print(found.report())


def passk(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=_ROWS)],
    k: Annotated[str, typer.Option("--k", metavar="K,…", help="Which k, as in 1,2,4")] = "1",
    as_json: Json = False,
) -> None:
    """Show pass@k without bias, from all attempts at each task, with 95 % intervals."""
    from fieldkit.eval.passk import PassAtK

    counts: dict[str, tuple[int, int]] = {}
    for task, attempts, passed in _attempts(_file(file)):
        n, before = counts.get(task, (0, 0))
        counts[task] = (n + attempts, before + passed)
    rows = [{"task_id": t, "n": n, "passed": passed} for t, (n, passed) in counts.items()]
    if not rows:
        raise BadInput(f"{file}: holds no record")
    try:
        found = PassAtK(_ks(k)).from_rows(rows)
    except BadInput as e:
        raise BadInput(f"{file}: {e}") from None
    table, facts = [("k", "pass@k", "95 % interval")], dict[str, Any]()
    for each in found.pass_at:
        value = found.estimate(each)
        ends = (value.interval.low, value.interval.high) if value.interval else None
        span = "" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
        table.append((str(each), f"{value.value:.3f}", span))
        facts[str(each)] = {"value": value.value, "interval": ends}
    n, samples = found.n_problems, found.samples_per_problem
    show(table, {"tasks": n, "attempts": samples, "pass_at": facts}, as_json=as_json)


def _ks(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise BadInput(f"--k {text}: write numbers with commas, as in --k 1,2,4") from None


def _rows(path: Path) -> Path | list[Mapping[str, Any]]:
    """What `MatchedBaseComparison` takes: a file of records, or the first attempts of an arm."""
    file = _file(path)
    if not _holds_trajectories(file):
        return file
    return [_record(t) for t in _trajectories(file) if t.k == 0]


def _file(path: Path) -> Path:
    """The file itself, or the one in an arm's folder."""
    if not path.is_dir():
        return path
    for name in _ARM_FILES:
        if stored(path / name) is not None:
            return path / name
    raise MissingFile(f"{path}: no {' or '.join(_ARM_FILES)} there, so it is not a stored arm")


def _holds_trajectories(file: Path) -> bool:
    if file.suffix == PACKED or stored(file) != file:
        return True
    first = next(read_objects(file), None)
    return first is not None and {"stop_reason", "turns", "grade"} <= first[1].keys()


def _trajectories(file: Path) -> Iterator[Trajectory]:
    from fieldkit.codec import stored_trajectories

    return stored_trajectories(file)


def _record(t: Trajectory) -> Mapping[str, Any]:
    grade = t.grade
    return {
        "task_id": t.task_id,
        "final_grade": {
            "passed": grade.passed,
            "n_passed": grade.n_passed,
            "n_total": grade.n_total,
            "assertions": [{"kind": r.kind, "passed": r.passed} for r in grade.results],
        },
        "stopped": t.stop_reason.value,
        "n_turns": len(t.turns),
        "wall_seconds": t.metrics.get("seconds", 0.0),
    }


def _attempts(file: Path) -> Iterator[tuple[str, int, int]]:
    """(task, attempts, those that passed) of each line."""
    if _holds_trajectories(file):
        yield from ((t.task_id, 1, int(t.grade.passed)) for t in _trajectories(file))
        return
    from fieldkit.eval.passk import whole_number
    from fieldkit.eval.task_record import flag

    for where, row in read_objects(file):
        grade = row.get("final_grade")
        if row.get("task_id", 0) in (None, ""):
            raise BadInput(f"{where}: task_id is empty: whose attempts are these?")
        try:
            if isinstance(grade, Mapping):
                n, passed = 1, int(flag(grade["passed"]))
            else:
                n, passed = whole_number(row["n"]), whole_number(row["passed"])
            if not 0 <= passed <= n:
                raise ValueError(f"{passed} of {n} attempts cannot pass")
            yield str(row["task_id"]), n, passed
        except KeyError as e:
            said = "a line has task_id, and n and passed or a final_grade"
            raise BadInput(f"{where}: the key {e} is missing: {said}") from None
        except ValueError as e:
            raise BadInput(f"{where}: not a record ({e})") from None
