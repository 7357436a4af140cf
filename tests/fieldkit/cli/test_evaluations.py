"""`fieldkit compare` and `fieldkit passk` on records, rows and stored arms."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from fieldkit.cli.command_line import main
from tests.scripts.evals import arm, tasks, write_eval


def fieldkit(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> str:
    with pytest.raises(SystemExit, match=str(code)):
        main([*map(str, words)])
    shown = capsys.readouterr()
    if code:
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        return shown.err
    return shown.out


def record(task: str, passed: bool, turns: int = 3) -> dict[str, Any]:
    grade = {"passed": passed, "n_passed": int(passed), "n_total": 1}
    return {"task_id": task, "final_grade": grade, "n_turns": turns}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    before = [record(str(i), False, 9) for i in range(8)]
    after = [record(str(i), i > 0) for i in range(8)]
    return write(tmp_path / "a.jsonl", *before), write(tmp_path / "b.jsonl", *after)


def test_two_files_of_records(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path]) -> None:
    said = fieldkit(capsys, "compare", *files)
    assert "| task pass | 0/8 (0.0%) | 7/8 (87.5%) | +87.5 pp |" in said
    assert "McNemar's exact p 0.0156" in said
    found = json.loads(fieldkit(capsys, "compare", *files, "--json"))
    assert found["overall_delta"]["delta_mean_turns"] == -6
    assert found["paired"]["task"]["difference"]["interval"]["low"] > 0.3


def test_two_stored_arms_by_their_folders(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    on = tasks(12)
    first = write_eval(tmp_path, arm("a", on, passes=2, turns=9, stops=0), on)
    second = write_eval(tmp_path, arm("b", on, passes=11, turns=3, stops=12), on)
    packed = second / "trajectories.jsonl.xz"
    packed.write_bytes(lzma.compress((second / "trajectories.jsonl").read_bytes()))
    (second / "trajectories.jsonl").unlink()  # as in a committed run
    said = fieldkit(capsys, "compare", first, second)
    assert "only the candidate passed: 9" in said
    assert json.loads(fieldkit(capsys, "passk", second, "--json"))["pass_at"]["1"][
        "value"
    ] == pytest.approx(11 / 12)


def test_passk_of_rows_of_attempts_and_of_graded_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [{"task_id": t, "n": 4, "passed": n} for t, n in (("a", 1), ("b", 4))]
    said = fieldkit(capsys, "passk", write(tmp_path / "rows.jsonl", *rows), "--k", "1,2,4")
    assert [line.split()[1] for line in said.splitlines()[1:]] == ["0.625", "0.750", "1.000"]
    each = [record("a", n == 0) for n in range(4)] + [record("b", True)] * 4
    found = fieldkit(capsys, "passk", write(tmp_path / "each.jsonl", *each), "--k", "2", "--json")
    assert json.loads(found)["pass_at"]["2"]["value"] == 0.75


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{\n", ":1: not valid JSON"),
        ("[]\n", ":1: expected an object"),
        ("{}\n", ":1: "),
        ('{"task_id": "a"}\n', ":1: "),
        ('{"task_id": "a", "n": 1e999, "passed": 1}\n', ":1: "),
        ('{"task_id": "a", "n": "x", "passed": 1}\n', ":1: "),
        ('{"task_id": "a", "n": 1, "passed": 7}\n', ":1: "),
        ('{"task_id": "", "n": 1, "passed": 1}\n', ":1: "),
        ('{"task_id": "a", "final_grade": {"passed": "false"}}\n', ":1: not a record"),
        ('{"stop_reason": 1, "turns": 2, "grade": 3}\n', ":1: "),
        ("", ""),
    ],
)
def test_bad_files_are_named_with_their_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(text)
    for command in (("passk", str(bad)), ("compare", str(bad), str(bad))):
        assert f"{bad}{said}" in fieldkit(capsys, *command, code=2)


def test_what_cannot_be_asked(
    capsys: pytest.CaptureFixture[str], files: tuple[Path, Path], tmp_path: Path
) -> None:
    assert "--k x" in fieldkit(capsys, "passk", files[0], "--k", "x", code=2)
    assert "pass@9 needs" in fieldkit(capsys, "passk", files[0], "--k", "9", code=2)
    assert "no such file" in fieldkit(capsys, "passk", tmp_path / "none", code=2)
    assert "not a stored arm" in fieldkit(capsys, "compare", tmp_path, files[0], code=2)
    write(files[1], record("other", True))
    said = fieldkit(capsys, "compare", *files, code=2)
    assert f"{files[0]} and {files[1]}: not the same tasks" in said


@pytest.mark.parametrize("twice", [0, 1])
def test_a_task_that_a_file_has_twice_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], files: tuple[Path, Path], twice: int
) -> None:
    write(files[twice], record("1", True), record("1", False))
    said = fieldkit(capsys, "compare", *files, code=2)
    assert f"{files[twice]}:2: the {('baseline', 'candidate')[twice]} has task 1 more" in said
