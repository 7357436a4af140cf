"""An append-only record of what happened in a folder, one fsynced JSON line an event.

From it a person (and a report) can see which process did what, when, and how it ended, even if the
machine went down in between. Whether something is done follows from the files themselves; the
journal may hold their hashes.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import append_line, read_lines
from fieldkit.files.json_text import parse_json

SCHEMA = 1

_OWN_KEYS = ("schema", "time", "pid", "event")


@dataclass(frozen=True)
class Entry:
    """One event. `time` is Unix seconds; `data` holds the event's own JSON values."""

    time: float
    pid: int
    event: str
    data: dict[str, Any]


class Journal:
    """The journal at `path`; the file is made by the first `append`.

    >>> import tempfile
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "journal.jsonl")
    >>> journal.append("trained", step=3, loss=0.25)
    >>> [(entry.event, entry.data) for entry in journal.read()]
    [('trained', {'step': 3, 'loss': 0.25})]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, event: str, **data: Any) -> None:
        """Add one event durably. Raises `ValueError` for NaN and for a key of the journal's own."""
        if clash := sorted(set(data) & set(_OWN_KEYS)):
            raise ValueError(f"the journal writes {', '.join(clash)} itself")
        head = {"schema": SCHEMA, "time": round(time.time(), 3), "pid": os.getpid(), "event": event}
        append_line(self.path, json.dumps({**head, **data}, allow_nan=False, ensure_ascii=False))

    def read(self) -> tuple[Entry, ...]:
        """Every event in order; none where no file is. Raises `BadInput` naming file and line."""
        if not self.path.is_file():
            return ()
        return tuple(
            _entry(line, f"{self.path}:{number}") for number, line in read_lines(self.path)
        )


def _entry(line: str, where: str) -> Entry:
    value = parse_json(line, where)
    try:
        if value.pop("schema") != SCHEMA:
            raise BadInput(f"{where}: this version reads schema {SCHEMA}")
        return Entry(
            time=float(value.pop("time")),
            pid=int(value.pop("pid")),
            event=str(value.pop("event")),
            data=value,
        )
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise BadInput(f"{where}: not a journal line ({e!r})") from None
