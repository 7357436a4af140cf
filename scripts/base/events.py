"""Events: what a phase reports to a display, or as JSON lines to `grpo run`.

A phase never prints. It emits events, which a terminal panel, a plain log or a parent process can
show. No decision depends on an event.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from fieldkit.errors import BadInput, Interrupted
from fieldkit.files.json_text import parse_json


class EventKind(StrEnum):
    """The kind of an event."""

    PHASE = "phase"
    """A phase begins. `text`: the phase's name; figures: step, and steps and
    seconds_left where they are known."""
    PROGRESS = "progress"
    """`done` of `total` `text` (episodes, micro-batches, seconds); too frequent for a log."""
    NOTE = "note"
    """One line that a person should read."""
    ALARM = "alarm"
    """One line that a person must not miss; red on a terminal."""
    DETAIL = "detail"
    """One line for the log; a terminal shows it if a person started the phase by hand."""
    TABLE = "table"
    """Several lines that belong together."""
    FINISHED = "finished"
    """A phase ended well. `text`: its outcome in one line."""
    FAILED = "failed"
    """A phase ended with an error. `text`: the error message; figures: exit_code."""


@dataclass(frozen=True)
class Event:
    """One event. `figures` are numbers by name; `done` and `total` count for PROGRESS only. beside:
    of the second of two phases that run at the same time."""

    kind: EventKind
    text: str
    done: int = 0
    total: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    beside: bool = False


Tell = Callable[[Event], None]
"""A listener for events."""


def note(tell: Tell, text: str) -> None:
    """Tell one line."""
    tell(Event(EventKind.NOTE, text))


def alarm(tell: Tell, text: str) -> None:
    """Tell one line that a person must not miss."""
    tell(Event(EventKind.ALARM, text))


def detail(tell: Tell, text: str) -> None:
    """Tell one line for the log."""
    tell(Event(EventKind.DETAIL, text))


def table(tell: Tell, text: str) -> None:
    """Tell several lines."""
    tell(Event(EventKind.TABLE, text))


def progress(tell: Tell, what: str, done: int, total: int, **figures: float) -> None:
    """Tell the phase's progress."""
    tell(Event(EventKind.PROGRESS, what, done, total, figures))


def tell_parent(event: Event) -> None:
    """Write an event to stdout as one JSON line, for the process that started this one.

    Raises `Interrupted` if that process is gone.
    """
    try:
        sys.stdout.write(json.dumps(asdict(event)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise the interpreter would flush stdout again at exit and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Interrupted("the loop that started this phase is gone; `grpo run` goes on") from None


def read_event(line: str) -> Event | None:
    """The event in a child's line; None if a library printed the line."""
    try:
        value = parse_json(line, "event")
        return Event(**{**value, "kind": EventKind(value["kind"])})
    except (BadInput, ValueError, KeyError, TypeError):
        return None
