"""What a person sees of a night: a live panel on a terminal, plain lines anywhere else.

A display is told events and never asks; it must not fail the night when its terminal is gone, nor
hold it up when its terminal takes nothing. Every event but progress also goes to the run's log as a
line, so that the morning can read the evening.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from fieldkit.errors import Shortage, foreseen
from scripts.base.events import Event, EventKind, progress
from scripts.base.invocation import typeable
from scripts.base.unblocked import Unblocked, unblocked

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""

_REFRESH_SECONDS = 0.25
_QUIET_SECONDS = 60.0
"""After so long without a line one says how far the phase is, where no panel can."""


_STYLES = {
    EventKind.NOTE: "",
    EventKind.FINISHED: "bold",
    EventKind.ALARM: "bold red",
    EventKind.DETAIL: "dim",
}
"""Of the events that are a line, as a terminal draws them."""


def silent(what: str, done: int, total: int) -> None:
    """The `Progress` that shows nothing."""


class Display(Protocol):
    """Where events go."""

    def tell(self, event: Event) -> None:
        """Show one event."""

    def tick(self) -> None:
        """Nothing has happened for a moment: clocks may move on."""

    def close(self) -> None:
        """The night is over."""


@dataclass
class Now:
    """What is true at the moment, gathered from events."""

    phase: str = ""
    step: int = 0
    steps: int = 0
    left: float | None = None
    began: float = field(default_factory=time.monotonic)
    what: str = ""
    done: int = 0
    total: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    beside: str = ""
    """How far the second of two phases is that run at the same time."""

    def take(self, event: Event) -> None:
        """Bring this up to date with an event."""
        if event.kind is EventKind.PHASE:
            self.phase, self.began = event.text, time.monotonic()
            self.step = int(event.figures.get("step", self.step))
            self.steps = int(event.figures.get("steps", self.steps))
            self.left = event.figures.get("seconds_left")
            self.what, self.done, self.total, self.beside = "", 0, 0, ""
        elif event.kind is EventKind.PROGRESS and event.beside:
            self.beside = f"{event.done}/{event.total} {event.text}"
            own = {k: v for k, v in event.figures.items() if k != "tokens_per_s"}
            self.figures |= own  # that speed is the first one's
        elif event.kind is EventKind.PROGRESS:
            self.what, self.done, self.total = event.text, event.done, event.total
            self.figures |= event.figures


class PlainDisplay:
    """One line for each event that means something.

    quiet: seconds after which a line of progress breaks the silence; None: progress is not shown.
    """

    def __init__(
        self, out: IO[str], *, details: bool, phases: bool = True, quiet: float | None = None
    ) -> None:
        self._out = out
        self._details = details
        self._phases = phases
        self._quiet = math.inf if quiet is None else quiet
        self._now = Now()
        self._spoke = time.monotonic()
        self._gone = False

    def tell(self, event: Event) -> None:
        self._now.take(event)
        clock = time.strftime("%H:%M:%S")
        match event.kind:
            case EventKind.PHASE if self._phases:
                self._say(f"{clock} {headline(self._now)}")
            case EventKind.TABLE:
                self._say(event.text)
            case EventKind.DETAIL if not self._details:
                self.tick()
            case kind if kind in _STYLES:
                self._say(f"{clock}   {event.text}", _STYLES[kind])
            case _:
                self.tick()

    def tick(self) -> None:
        if time.monotonic() - self._spoke >= self._quiet:
            far = ": ".join(filter(None, (self._now.phase, how_far(self._now))))
            line = "   ".join(filter(None, (far, figures_line(self._now.figures))))
            self._say(f"{time.strftime('%H:%M:%S')}   {line}")

    def close(self) -> None:
        if isinstance(self._out, Unblocked) and not self._out.closed:
            self._draw(self._out.close)

    def _say(self, text: str, style: str = "") -> None:
        self._spoke = time.monotonic()
        self._draw(lambda: self._print(typeable(text), style))

    def _print(self, text: str, style: str = "") -> None:
        print(text, file=self._out, flush=True)

    def _draw(self, draw: Callable[[], object]) -> None:
        """Draw, unless the terminal is gone: a closed window must not end the night, and the run's
        log has it all. A log on a full disk goes on once there is room."""
        if self._gone:
            return
        try:
            draw()
        except (OSError, ValueError) as e:
            self._gone = not isinstance(foreseen(e), Shortage)
        except RuntimeError as e:
            # A signal came while a full terminal took nothing: its own line is in the log alone.
            if "reentrant" not in str(e):
                raise


class LiveDisplay(PlainDisplay):
    """A panel at the bottom of the terminal, with the lines scrolling above it."""

    def __init__(self, out: IO[str], *, details: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(out, details=details, phases=False)  # the panel names it
        self._console = Console(file=out)
        # Refreshed by us: a thread of Rich's would run while children are forked.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._refreshed = 0.0
        self._draw(self._live.start)

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH_SECONDS:
            self._refreshed = now
            self._draw(lambda: self._live.update(panel(self._now), refresh=True))

    def close(self) -> None:
        self._draw(self._live.stop)
        super().close()

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        # A Text has its style to itself; `print(style=...)` would draw the panel in it as well.
        self._console.print(Text(text, style))


class Both:
    """Two displays at once: the terminal and the run's log."""

    def __init__(self, *displays: Display) -> None:
        self._displays = displays

    def tell(self, event: Event) -> None:
        for display in self._displays:
            display.tell(event)

    def tick(self) -> None:
        for display in self._displays:
            display.tick()

    def close(self) -> None:
        for display in self._displays:
            display.close()


def make_display(*, details: bool, out: IO[str] | None = None) -> Display:
    """The live panel on a terminal, plain lines elsewhere. `details`: show the trainer's lines.

    out: where to, in place of stdout.
    """
    out = unblocked(out or sys.stdout)
    if out.isatty():
        return LiveDisplay(out, details=details)
    return PlainDisplay(out, details=details, quiet=_QUIET_SECONDS)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a function that shows on stderr how far a command is that only counts."""
    display = make_display(details=True, out=sys.stderr)
    try:
        yield lambda what, done, total: progress(display.tell, what, done, total)
    finally:
        display.close()


def log_display(log: Path, name: str) -> PlainDisplay:
    """A plain display into a new file of the run's log/."""
    log.mkdir(parents=True, exist_ok=True)
    file = log / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    return PlainDisplay(open(file, "a", encoding="utf-8", errors="replace"), details=True)


def headline(now: Now) -> str:
    """Step, phase and time left in one line."""
    parts = []
    if now.steps:
        parts.append(f"step {now.step}/{now.steps}")
    elif now.step:
        parts.append(f"step {now.step}")  # how many there will be is known once one was measured
    parts.append(now.phase)
    if now.left is not None:
        parts.append(f"about {to_the_second(now.left)} left")
    return " · ".join(parts)


def how_far(now: Now) -> str:
    """What of the phase is done, and how long it has run."""
    counted = f"{now.done}/{now.total} {now.what}, " if now.total else ""
    counted += f"{now.beside} beside it, " if now.beside else ""
    return counted + to_the_second(time.monotonic() - now.began)


def figures_line(figures: dict[str, float]) -> str:
    """Reward, stop rate, turns and speed, as far as they are known."""
    shown = {
        "reward": ("reward {:.3f}", 1.0),
        "stop_rate": ("stops {:.0f} %", 100.0),
        "turns": ("turns {:.1f}", 1.0),
        "tokens_per_s": ("{:.0f} tokens/s", 1.0),
    }
    return "   ".join(
        form.format(figures[key] * scale) for key, (form, scale) in shown.items() if key in figures
    )


def panel(now: Now) -> Any:
    """The live panel: what runs, how far it is, and the figures so far."""
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    body = Table.grid(padding=(0, 1))
    body.add_column()
    if now.total:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=now.total, completed=now.done, width=40),
            Text(how_far(now)),
        )
        body.add_row(bar)
    else:
        body.add_row(Text(how_far(now)))
    if line := figures_line(now.figures):
        body.add_row(Text(line))
    return Panel(body, title=Text(headline(now)), title_align="left")


def to_the_second(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
