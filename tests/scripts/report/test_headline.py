"""The first screen of the page."""

from __future__ import annotations

from pathlib import Path

from scripts.evidence.findings import read_findings
from scripts.report.headline import headline
from tests.scripts.made_night import make_night


def test_a_row_whose_tasks_did_not_move_is_none_of_the_intervals_looked_at(tmp_path: Path) -> None:
    """Of two personas, three difficulties, two templates and three kinds one kind always holds."""
    night = make_night(tmp_path)
    found = read_findings(night.folder, night.config)
    assert headline(found, None).worse_note.startswith("Of 9 intervals below, none on the worse")


def test_a_figure_of_the_first_screen_that_got_worse_is_among_what_did(tmp_path: Path) -> None:
    night = make_night(tmp_path, lost=14)
    shown = headline(read_findings(night.folder, night.config), None)
    passed = next(tile for tile in shown.tiles if tile.name == "tasks passed")
    assert passed.sign < 0
    assert shown.worse[0] == f"tasks passed: {passed.change}"
