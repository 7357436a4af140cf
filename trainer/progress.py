"""The trainer's progress: lines for a person, or JSON lines for a display.

One object is passed down, so that no module prints by itself or knows the reader.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """Receives the trainer's progress."""

    def say(self, text: str) -> None:
        """One finished line."""

    def micro_batch(self, phase: str, done: int, of: int, tokens: int, seconds: float) -> None:
        """`done` of `of` micro-batches of a phase ("reference", "policy", and "policy again" in a
        later pass) are finished.

        tokens: inputs of the last one without padding; seconds: its duration.
        """


class Lines:
    """For a person: `[trainer] …`, one line for each thing and for each micro-batch."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def say(self, text: str) -> None:
        print(f"[trainer] {text}", file=self._out, flush=True)

    def micro_batch(self, phase: str, done: int, of: int, tokens: int, seconds: float) -> None:
        self.say(f"{phase} {done}/{of}: {tokens:,} tokens in {seconds:.1f} s")


class Silence:
    """For nobody."""

    def say(self, text: str) -> None:
        pass

    def micro_batch(self, phase: str, done: int, of: int, tokens: int, seconds: float) -> None:
        pass


class JsonLines:
    """For a display: {"event": "line" | "microbatch", …}, one object a line.

    log: gets the same as lines for a person.
    """

    def __init__(self, out: TextIO, log: Lines | None = None) -> None:
        self._out = out
        self._log = log

    def say(self, text: str) -> None:
        self._write(event="line", text=text)
        if self._log is not None:
            self._log.say(text)

    def micro_batch(self, phase: str, done: int, of: int, tokens: int, seconds: float) -> None:
        rounded = round(seconds, 3)
        self._write(
            event="microbatch", phase=phase, done=done, of=of, tokens=tokens, seconds=rounded
        )
        if self._log is not None:
            self._log.micro_batch(phase, done, of, tokens, seconds)

    def _write(self, **values: Any) -> None:
        print(json.dumps(values, ensure_ascii=False), file=self._out, flush=True)


class Stopwatch:
    """Wall seconds by phase. A phase may be entered again; its seconds add up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    @property
    def total(self) -> float:
        """Seconds since this watch was made."""
        return time.perf_counter() - self._began
