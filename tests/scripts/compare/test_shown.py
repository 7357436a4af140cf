"""The page of a comparison, as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.compare.compare import compare_arms
from scripts.compare.forms import shown
from scripts.compare.shown import write_html
from tests.scripts.made_night import make_night


def test_the_page_is_written_where_it_was_asked_for_and_over_no_file_of_a_run(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path / "made").folder
    found = shown(compare_arms([f"{night.path}@warm", str(night.path)]))
    path = write_html(found, tmp_path / "new" / "c.html")
    assert path.read_text().startswith("<!doctype html>")
    with pytest.raises(BadInput, match="a folder"):
        write_html(found, tmp_path)
    report = night.path / "report.html"
    with pytest.raises(BadInput, match="this file belongs to a run; name another"):
        write_html(found, report)
    assert not report.exists()
