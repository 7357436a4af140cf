from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.lineage import RecipeEdit
from tests.fieldkit.compat.test_compat_lineage import trial


def test_a_removed_and_a_new_file_are_part_of_the_diff(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    parent.mkdir()
    child.mkdir()
    (parent / "old.txt").write_text("old\n")
    (child / "new.txt").write_text("new")
    diff = RecipeEdit(trial("1"), child, parent).diff()
    assert "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n\\ No newline" in diff
    assert "--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n" in diff


def test_a_folder_that_is_gone_is_an_error_and_no_empty_diff(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone: no such folder"):
        RecipeEdit(trial("1"), tmp_path / "gone", tmp_path).diff()


def test_lines_end_where_other_programs_end_them_and_empty_files_are_named(tmp_path: Path) -> None:
    before, after = tmp_path / "a", tmp_path / "b"
    for folder, last in ((before, "b"), (after, "c")):
        folder.mkdir()
        (folder / "page").write_text(f"a\x0c{last}\n")
    (after / "__init__.py").touch()
    assert RecipeEdit(trial("1"), after, before).diff() == (
        "--- /dev/null\n+++ b/__init__.py\n--- a/page\n+++ b/page\n@@ -1 +1 @@\n-a\x0cb\n+a\x0cc\n"
    )
