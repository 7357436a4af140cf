"""TensorBoard's event file: every point of a run, made again from its files at any time.

Nothing here is read back by the loop. What was written before is the beginning of what is written
now, so a run that was stopped and resumed says nothing twice.
"""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fieldkit.files.atomic import fsync_dir
from scripts.run.folder import RunFolder
from scripts.track.points import Point, Tracker

EVENTS = "events.out.tfevents.grpo"
"""TensorBoard reads files with "tfevents" in their name."""

_FILE_VERSION = "brain.Event:2"  # what the first record of an event file has to say


class TensorBoard(Tracker):
    """Every run has it: its file lies in the run folder, and it is installed with the loop."""

    name = "TensorBoard"

    def bring(
        self, folder: RunFolder, points: Sequence[Point], stop_asked: Callable[[], bool]
    ) -> str:
        """As `write_tensorboard`."""
        return str(write_tensorboard(folder, points) or f"{folder.path}: no step is finished yet")


def write_tensorboard(folder: RunFolder, points: Sequence[Point]) -> Path | None:
    """Bring tensorboard/ up to date; return the event file, or None where there is no point yet.

    The file is always the beginning of what it should be, so only what is missing is appended: a
    TensorBoard that is open follows it, and a tail that a crash tore off is completed. Where that
    does not hold (a step was taken back by hand and played again) it is written anew.
    """
    if not points:
        return None
    wanted = event_bytes(points)
    path = folder.tensorboard / EVENTS
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
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
    """The points as one event file. The same points give the same bytes."""
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
