from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval import ASSERTION_KINDS, AssertionGrader, AssertionKind
from fieldkit.eval.tree import Unmet

GRADER = AssertionGrader()


def asked(kind: str, path: str = "a.txt", **keys: Any) -> list[dict[str, Any]]:
    return [{"kind": kind, "path": path, **keys}]


def test_an_unknown_kind_is_an_error_and_no_failed_assertion(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'file_exist' is unknown.*did you mean 'file_exists'"):
        GRADER.grade(asked("file_exist"), tmp_path, task_id="t7")


def test_a_path_outside_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"component '\.\.'"):
        GRADER.grade(asked("file_exists", "../secret"), tmp_path)


def test_a_link_is_not_followed_and_a_folder_exists(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/hostname")
    assert GRADER.grade(asked("file_exists", "folder"), tmp_path).passed
    (link,) = GRADER.grade(asked("file_exists", "link"), tmp_path).assertions
    assert link.detail == "is a symbolic link, not a file"


def test_an_unchanged_file_without_its_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not in workspace_seed"):
        GRADER.grade(asked("file_unchanged"), tmp_path)


def test_a_task_without_a_list_of_assertions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="task t: verifiable_assertions must be a list"):
        GRADER.grade({"task_id": "t"}, tmp_path)


def test_a_folder_that_is_not_there_is_an_error_and_no_grade(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GRADER.grade(asked("file_not_exists"), tmp_path / "gone")


def test_a_kind_of_ones_own_is_graded_after_its_registration(tmp_path: Path) -> None:
    def longer(wanted: int, text: str, limits: object) -> None:
        if len(text) < wanted:
            raise Unmet(f"has {len(text)} characters")

    (tmp_path / "a.txt").write_text("abc")
    ASSERTION_KINDS.register("file_longer", AssertionKind(of_text=longer, key="than"))
    try:
        assert GRADER.supported_kinds()[-1] == "file_longer"
        assert GRADER.grade(asked("file_longer", than=3), tmp_path).passed
        found = GRADER.grade(asked("file_longer", than=4), tmp_path).assertions[0]
        assert found.detail == "has 3 characters"
    finally:
        ASSERTION_KINDS.remove("file_longer")


@pytest.mark.parametrize("odd", [{"kind": []}, {"path": {}}, {2: "a", "b": 3}])
def test_what_json_or_python_put_in_a_texts_place_is_refused_with_the_tasks_name(
    tmp_path: Path, odd: dict[Any, Any]
) -> None:
    with pytest.raises(BadInput, match=r"task t7: verifiable_assertions\.0"):
        GRADER.grade([{"kind": "file_exists", "path": "a.txt", **odd}], tmp_path, task_id="t7")
