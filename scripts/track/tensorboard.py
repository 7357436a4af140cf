"""TensorBoard's event file, which can be made again from the run's files at any time.

The loop never reads it. Its old content is a prefix of the new one, so a resumed run writes no
point twice.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fieldkit.files.atomic import fsync_dir, locked
from scripts.run.folder import RunFolder
from scripts.track.points import Point, Tracker

EVENTS = "events.out.tfevents.grpo"
"""TensorBoard reads only files with "tfevents" in their name."""

_FILE_VERSION = "brain.Event:2"  # required in the first record of an event file


class TensorBoard(Tracker):
    """On for every run: its file lies in the run folder, and it is installed with the loop."""

    name = "TensorBoard"

    def bring(
        self, folder: RunFolder, points: Sequence[Point], stop_asked: Callable[[], bool]
    ) -> str:
        """As `write_tensorboard`."""
        return str(write_tensorboard(folder, points) or f"{folder.path}: no step is finished yet")


def write_tensorboard(folder: RunFolder, points: Sequence[Point]) -> Path | None:
    """Bring tensorboard/ up to date; return the event file, or None if there are no points.

    The file normally is a prefix of the wanted content, so only the missing rest is appended: an
    open TensorBoard follows it, and a file cut short by a crash is completed. Otherwise (a step was
    removed by hand and played again) it is rewritten.
    """
    if not points:
        return None
    wanted = event_bytes(points)
    path = folder.tensorboard / EVENTS
    path.parent.mkdir(exist_ok=True)
    with locked(path) as f:
        f.seek(0)
        there = f.read()
        if not wanted.startswith(there):
            f.truncate(0)
            there = b""
        if there != wanted:
            f.write(wanted[len(there) :])
            f.flush()
            os.fsync(f.fileno())
    fsync_dir(path.parent)
    return path


def event_bytes(points: Sequence[Point]) -> bytes:
    """Encode the points as one event file. The same points give the same bytes."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    records = RecordWriter(out)
    records.write(Event(wall_time=points[0].time, file_version=_FILE_VERSION).SerializeToString())
    for p in points:
        values = [Summary.Value(tag=tag, simple_value=v) for tag, v in p.scalars.items()]
        event = Event(wall_time=p.time, step=p.step, summary=Summary(value=values))
        records.write(event.SerializeToString())
    return out.getvalue()
