"""Where the page may be written, and what is said where it cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.evidence.findings import read_findings
from scripts.report.files import write_files, write_report
from tests.scripts.made_night import make_night


def test_a_page_is_written_over_no_other_file_of_the_run(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=1)
    found, manifest = read_findings(night.folder, night.config), night.folder.manifest
    before = manifest.read_bytes()
    with pytest.raises(BadInput, match="this file belongs to a run; name another"):
        write_report(found, manifest)
    assert manifest.read_bytes() == before
    assert write_report(found) == night.folder.path / "report.html"


def test_a_page_that_cannot_be_made_is_told_of_and_not_among_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render(*_: object) -> str:
        raise BadInput("an episode is torn")

    monkeypatch.setattr("scripts.report.files.render", render)
    night = make_night(tmp_path, n_steps=1)
    found = read_findings(night.folder, night.config)
    said: list[str] = []
    names = ["evidence.json", "evidence.md", "curve.png"]
    assert write_files(found, said.append) == [night.folder.path / name for name in names]
    assert said == ["report.html was not written: an episode is torn"]
    assert not (night.folder.path / "report.html").exists()


def test_another_file_that_cannot_be_made_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_curve(*_: object) -> None:
        raise BadInput("no picture")

    monkeypatch.setattr("scripts.report.files.write_curve", write_curve)
    night = make_night(tmp_path, n_steps=1)
    with pytest.raises(BadInput, match="no picture"):
        write_files(read_findings(night.folder, night.config))
