"""Progress of commands that count: a Rich bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""

_LINE_SECONDS = 10.0


@contextmanager
def bar() -> Iterator[Progress]:
    """Yield a function that shows how far something is."""
    if sys.stderr.isatty():
        with _rich_bar() as progress:
            yield progress
    else:
        yield _lines()


@contextmanager
def _rich_bar() -> Iterator[Progress]:
    from rich import progress as rich

    with rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
    ) as display:
        rows: dict[str, rich.TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in rows:
                rows[what] = display.add_task(what, total=total)
            display.update(rows[what], completed=done, total=total)

        yield show


def _lines() -> Progress:
    spoken: dict[str, float] = {}

    def show(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - spoken.get(what, 0.0) >= _LINE_SECONDS:
            spoken[what] = now
            print(f"{what} {done}/{total}", file=sys.stderr, flush=True)

    return show
