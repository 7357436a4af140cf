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
    assert headline(found, None).worse_note.startswith("Of 9 intervals of assertions under “Where")


def test_a_figure_of_the_first_screen_that_got_worse_is_among_what_did(tmp_path: Path) -> None:
    night = make_night(tmp_path, lost=14)
    shown = headline(read_findings(night.folder, night.config), None)
    passed = next(tile for tile in shown.tiles if tile.name == "tasks passed")
    assert passed.sign < 0
    assert shown.worse[0] == f"tasks passed: {passed.change}"


def test_tasks_of_kinds_that_training_has_not_are_told_apart_on_the_first_screen(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path)
    found = read_findings(night.folder, night.config)
    assert found.evidence is not None
    unseen = next(r for r in found.evidence.splits["template"] if r.value == "unseen")
    after, before = (unseen.rows[name].passed for name in ("step 8", "warm start"))
    assert (
        headline(found, None)
        .notes[0]
        .startswith(
            f"Of the {unseen.n_tasks} tasks of templates that training has not, {after} passed,"
            f" {before} before ("
        )
    )


def test_a_kind_of_task_of_which_fewer_pass_beyond_luck_is_among_what_got_worse(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path, lost=14)
    found = read_findings(night.folder, night.config)
    assert found.evidence is not None
    rows = {f"{t} {r.value}": r for t, rows in found.evidence.splits.items() for r in rows}
    fewer = [w for w, r in rows.items() if r.paired and r.paired.passed.sign < 0]
    told = headline(found, None).worse
    assert fewer
    assert all(any(line.startswith(f"{where}: tasks passed −") for line in told) for where in fewer)
