"""The list of trackers: one of one's own is one class and one entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.base.events import Event
from scripts.run.config import NightSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.track.points import Point, Tracker
from scripts.track.trackers import TRACKERS, require_trackers, track
from tests.scripts.made_night import make_night


class Notebook(Tracker):
    """A tracker as another package would bring it: wanted by runs of at most three steps."""

    name = "A notebook"

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.missing = False

    def wanted(self, config: RunConfig) -> bool:
        return config.run.steps == 3

    def require(self) -> None:
        if self.missing:
            raise BadInput("no notebook; buy one")

    def bring(
        self, folder: RunFolder, points: Sequence[Point], stop_asked: Callable[[], bool]
    ) -> str:
        self.points = list(points)
        return "written down"


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    added = Notebook()
    monkeypatch.setattr("scripts.track.trackers.TRACKERS", [*TRACKERS, added])
    return added


def test_a_further_tracker_sees_the_points_of_the_runs_that_want_it(
    tmp_path: Path, notebook: Notebook
) -> None:
    night = make_night(tmp_path, n_steps=3)
    told: list[Event] = []
    track(night.folder, RunConfig(run=NightSettings(steps=4)), told.append)
    assert not notebook.points
    track(night.folder, RunConfig(run=NightSettings(steps=3)), told.append)
    assert [p.step for p in notebook.points] == [0, 1, 2, 3, 3]
    assert notebook.points[1].scalars["rollout/stop_rate"] == 1 / 3
    assert not told


def test_a_failure_without_a_word_is_named_by_its_class(
    tmp_path: Path, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object) -> str:
        raise AssertionError

    monkeypatch.setattr(notebook, "bring", fail)
    told: list[Event] = []
    track(
        make_night(tmp_path, n_steps=3).folder, RunConfig(run=NightSettings(steps=3)), told.append
    )
    assert [e.text.split(";")[0] for e in told] == ["A notebook: AssertionError()"]


def test_a_further_tracker_that_is_not_installed_is_named_before_the_night(
    notebook: Notebook,
) -> None:
    notebook.missing = True
    require_trackers(RunConfig(run=NightSettings(steps=4)))
    with pytest.raises(BadInput, match="buy one"):
        require_trackers(RunConfig(run=NightSettings(steps=3)))
