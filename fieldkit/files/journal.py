"""An append-only record of what happened in a folder, one fsynced JSON line an event.

From it a person (and a report) can see which process did what, when, and how it ended, even if the
machine went down in between. Whether something is done follows from the files themselves; the
journal may hold their hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import append_line, decode_line, last_line, read_lines
from fieldkit.files.json_text import parse_json, whole_text

SCHEMA = 1

_OWN_KEYS = ("schema", "time", "pid", "event")


@dataclass(frozen=True)
class Entry:
    """One event. `time` is Unix seconds; `data` holds the event's own JSON values."""

    time: float
    pid: int
    event: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """How far a journal was read: bytes and lines, and the hex SHA-256 of the last line's bytes, by
    which the same journal is known again."""

    n_bytes: int = 0
    n_lines: int = 0
    last: str = ""


class Journal:
    """The journal at `path`; the file is made by the first `append`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "journal.jsonl")
    >>> journal.append("trained", step=3, loss=0.25)
    >>> [(entry.event, entry.data) for entry in journal.read()]
    [('trained', {'step': 3, 'loss': 0.25})]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, event: str, /, **data: Any) -> None:
        """Add one event durably; "?" for what is no text, as in a file's name that is not UTF-8.
        Raises `ValueError` for NaN and for a key of the journal's own."""
        if clash := sorted(set(data) & set(_OWN_KEYS)):
            raise ValueError(f"the journal writes {', '.join(clash)} itself")
        head = {"schema": SCHEMA, "time": round(time.time(), 3), "pid": os.getpid(), "event": event}
        line = json.dumps({**head, **data}, allow_nan=False, ensure_ascii=False)
        append_line(self.path, whole_text(line))

    def read(self) -> tuple[Entry, ...]:
        """Every event in order; none where no file is. Raises `BadInput` naming file and line."""
        if not self.path.is_file():
            return ()
        return tuple(
            _entry(line, f"{self.path}:{number}") for number, line in read_lines(self.path)
        )

    def read_on(self, mark: Mark) -> tuple[tuple[Entry, ...], Mark] | None:
        """The events after a mark, and the new mark; None where the file is not the one that was
        marked. Reads nothing of what lies before, but for its last line. Raises as `read`.

        >>> import tempfile
        >>> from pathlib import Path
        >>> journal = Journal(Path(tempfile.mkdtemp()) / "journal.jsonl")
        >>> journal.append("one")
        >>> entries, mark = journal.read_on(Mark())
        >>> journal.append("two")
        >>> [entry.event for entry in journal.read_on(mark)[0]]
        ['two']
        """
        if not self.path.is_file():
            return ((), mark) if mark == Mark() else None
        with open(self.path, "rb") as f:
            if mark != Mark() and _hash_of_line(f, mark.n_bytes) != mark.last:
                return None
            f.seek(mark.n_bytes)
            lines = f.read().splitlines(keepends=True)
        entries, n_bytes, last = [], mark.n_bytes, mark.last
        for number, line in enumerate(lines, start=mark.n_lines + 1):
            if line.endswith(b"\n"):
                where = f"{self.path}:{number}"
                entries.append(_entry(decode_line(line, where), where))
                n_bytes, last = n_bytes + len(line), hashlib.sha256(line).hexdigest()
        return tuple(entries), Mark(n_bytes, mark.n_lines + len(entries), last)


def _hash_of_line(f: IO[bytes], end: int) -> str:
    """The hash of the line that ends at a place; "" where none does."""
    line, found = last_line(f, end)
    return hashlib.sha256(line).hexdigest() if found == end else ""


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
