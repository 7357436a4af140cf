from __future__ import annotations

from pathlib import Path

from scripts.evidence.findings import read_findings
from scripts.evidence.flips import Change, change_of
from tests.scripts.evals import trajectory
from tests.scripts.made_night import make_night


def test_a_task_that_no_longer_passes_is_lost_and_one_that_now_does_is_won() -> None:
    passed, failed = trajectory("t", "a", 4, 3, True), trajectory("t", "b", 2, 3, True)
    assert change_of(passed, failed) is Change.LOST
    assert change_of(failed, passed) is Change.WON


def test_an_attempt_that_ends_for_another_reason_is_told_and_the_same_ending_is_not() -> None:
    runs_on, stops = trajectory("t", "a", 4, 12, False), trajectory("t", "b", 4, 3, True)
    assert change_of(runs_on, stops) is Change.ENDING
    assert change_of(stops, stops) is None


def test_lost_tasks_come_first_since_they_are_what_a_person_has_to_see(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    flips = read_findings(night.folder, night.config).flips
    assert flips is not None
    assert [f.task.task_id for f in flips.flips[:6]] == [
        "t000",
        "t001",
        "t010",
        "t011",
        "t012",
        "t013",
    ]
    assert (flips.before, flips.after) == ("warm start", "step 8")
