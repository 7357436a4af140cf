"""The list of trackers, which are brought up to date at the end of every phase.

To add a tracker, write one class and add one entry to `TRACKERS`. A failure of a tracker is
reported as one line and never ends a night.
"""

from __future__ import annotations

from collections.abc import Callable

from scripts.base.events import Tell, note
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.track.points import Point, Tracker, read_points
from scripts.track.tensorboard import TensorBoard
from scripts.track.weights_biases import WeightsAndBiases

TRACKERS: list[Tracker] = [TensorBoard(), WeightsAndBiases()]
"""Every tracker."""


def wanted_trackers(config: RunConfig) -> list[Tracker]:
    """The trackers that the run's settings turn on."""
    return [tracker for tracker in TRACKERS if tracker.wanted(config)]


def require_trackers(config: RunConfig) -> None:
    """Raise `BadInput` if a wanted tracker is not installed."""
    for tracker in wanted_trackers(config):
        tracker.require()


def track(
    folder: RunFolder,
    config: RunConfig,
    tell: Tell,
    stop_asked: Callable[[], bool] = lambda: False,
) -> None:
    """Bring every wanted tracker up to date. Raises nothing: failures are reported as notes."""
    points: tuple[Point, ...] | None = None
    for tracker in wanted_trackers(config):
        try:
            if tracker.is_due(folder) and not tracker.bring_newest(folder):
                points = read_points(folder) if points is None else points
                tracker.bring(folder, points, stop_asked)
        except Exception as e:  # no failure of a tracker may end the night
            said = str(e) or repr(e)
            note(tell, f"{tracker.name}: {said}; `grpo track {folder.typed}` makes up for it")
