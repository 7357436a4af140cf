"""The commit that measurements and manifests name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.base import machine


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit of two files."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    who = ("-c", "user.name=me", "-c", "user.email=me@here")
    (tmp_path / "docs").mkdir()
    for name in ("code.py", "docs/page.md"):
        (tmp_path / name).write_text("as it was\n")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_changed_file_is_told_by_a_plus(checkout: Path) -> None:
    commit = machine.versions()["commit"]
    assert len(commit) == 40
    (checkout / "code.py").write_text("changed\n")
    (checkout / "untracked").write_text("no matter\n")
    assert machine.versions()["commit"] == f"{commit}+"


def test_what_the_caller_writes_itself_is_no_change(checkout: Path) -> None:
    commit = machine.versions()["commit"]
    (checkout / "docs/page.md").write_text("written anew\n")
    assert machine.versions(("docs/p*.md",))["commit"] == commit
    (checkout / "code.py").write_text("changed\n")
    assert machine.versions(("docs/p*.md",))["commit"] == f"{commit}+"


def test_outside_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert "commit" not in machine.versions()
