"""TensorBoard's event file, which can be made again from the run's files at any time.

The loop never reads it. Its old content is a prefix of the new one, so a resumed run writes no
point twice.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.codec import decode, encode
from fieldkit.errors import BadInput
from fieldkit.files.atomic import fsync_dir, locked, write_text
from rollout.arm import SUMMARY
from scripts.run.folder import RunFolder
from scripts.track.points import Point, Tracker, read_newest_points

EVENTS = "events.out.tfevents.grpo"
"""TensorBoard reads only files with "tfevents" in their name."""

_FILE_VERSION = "brain.Event:2"  # required in the first record of an event file


WRITTEN = "written.json"
"""Beside the event file: how far it is written. Made again where it is missing."""


@dataclass(frozen=True)
class Written:
    """The event file's bytes, the points of its last step, and how many evaluations the run had."""

    n_bytes: int
    last: tuple[Point, ...]
    n_evals: int


class TensorBoard(Tracker):
    """On for every run: its file lies in the run folder, and it is installed with the loop."""

    name = "TensorBoard"

    def bring(
        self, folder: RunFolder, points: Sequence[Point], stop_asked: Callable[[], bool]
    ) -> str:
        """As `write_tensorboard`."""
        return str(write_tensorboard(folder, points) or f"{folder.path}: no step is finished yet")

    def bring_newest(self, folder: RunFolder) -> bool:
        """Append what came after the last point. False where the file or the last step is not as
        it was written, or an adapter of an older step was evaluated since."""
        path, known = folder.tensorboard / EVENTS, _read_written(folder)
        if known is None or not path.is_file() or path.stat().st_size != known.n_bytes:
            return False
        fresh = read_newest_points(folder, known.last)
        if fresh is None or _n_evals(folder) - known.n_evals != sum(p.is_evaluation for p in fresh):
            return False
        if fresh:
            with locked(path) as f:
                f.write(_records(fresh))
                f.flush()
                os.fsync(f.fileno())
            _keep_written(folder, (*known.last, *fresh))
        return True


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
    _keep_written(folder, points)
    return path


def _n_evals(folder: RunFolder) -> int:
    return sum(1 for _ in folder.evals.glob(f"*/{SUMMARY}"))


def _read_written(folder: RunFolder) -> Written | None:
    file = folder.tensorboard / WRITTEN
    try:
        return decode(Written, file.read_text(encoding="utf-8"), str(file))
    except (BadInput, FileNotFoundError, UnicodeDecodeError):
        return None


def _keep_written(folder: RunFolder, points: Sequence[Point]) -> None:
    n_bytes = (folder.tensorboard / EVENTS).stat().st_size
    last = tuple(p for p in points[-2:] if p.step == points[-1].step)
    text = encode(Written(n_bytes, last, _n_evals(folder)))
    write_text(folder.tensorboard / WRITTEN, text + "\n")


def event_bytes(points: Sequence[Point]) -> bytes:
    """Encode the points as one event file. The same points give the same bytes."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    head = Event(wall_time=points[0].time, file_version=_FILE_VERSION)
    RecordWriter(out).write(head.SerializeToString())
    return out.getvalue() + _records(points)


def _records(points: Sequence[Point]) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    records = RecordWriter(out)
    for p in points:
        values = [Summary.Value(tag=tag, simple_value=v) for tag, v in p.scalars.items()]
        event = Event(wall_time=p.time, step=p.step, summary=Summary(value=values))
        records.write(event.SerializeToString())
    return out.getvalue()
