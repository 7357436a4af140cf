"""The trackers of a run: one list of them, brought up to date as a phase ends.

A further tracker is one class and one entry in `TRACKERS`; the rest of the house asks only whether
those that are wanted are installed. No tracker can end a night: what fails is told as a line.
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
"""Every tracker there is."""


def wanted_trackers(config: RunConfig) -> list[Tracker]:
    """Those that the run's settings ask for."""
    return [tracker for tracker in TRACKERS if tracker.wanted(config)]


def require_trackers(config: RunConfig) -> None:
    """Raise `BadInput` where one that is wanted is not installed."""
    for tracker in wanted_trackers(config):
        tracker.require()


def track(
    folder: RunFolder,
    config: RunConfig,
    tell: Tell,
    stop_asked: Callable[[], bool] = lambda: False,
) -> None:
    """Bring every tracker up to date as a phase ends. Raises nothing: a failure is told."""
    points: tuple[Point, ...] | None = None
    for tracker in wanted_trackers(config):
        try:
            if tracker.is_due(folder):
                points = read_points(folder) if points is None else points
                tracker.bring(folder, points, stop_asked)
        except Exception as e:  # whatever a tracker does, the night goes on
            note(
                tell, f"{tracker.name}: {e or repr(e)}; `grpo track {folder.typed}` makes up for it"
            )
