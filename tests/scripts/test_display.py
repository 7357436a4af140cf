"""Plain lines where there is no terminal: what they say, and that a long phase is not silent."""

from __future__ import annotations

import io
import re

from scripts.display import PlainDisplay
from scripts.events import Event, EventKind, note, progress

PHASE = Event(EventKind.PHASE, "rollout", figures={"step": 3, "steps": 20, "seconds_left": 1290.0})
FIGURES = {"reward": 0.5, "stop_rate": 0.25, "turns": 9.5, "tokens_per_s": 81.0}


def said(out: io.StringIO) -> list[str]:
    """The lines without their clocks."""
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in out.getvalue().splitlines()]


def test_a_phase_is_announced_with_step_and_time_left() -> None:
    out = io.StringIO()
    PlainDisplay(out, details=False).tell(PHASE)
    assert said(out) == ["step 3/20 · rollout · about 21 min 30 s left"]


def test_after_a_quiet_minute_a_line_says_how_far_the_phase_is() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, details=False, quiet=0.0)
    display.tell(PHASE)
    progress(display.tell, "episodes", 12, 32, **FIGURES)
    assert said(out)[1:] == [
        "  rollout: 12/32 episodes, 0 s   reward 0.500   stops 25 %   turns 9.5   81 tokens/s"
    ]


def test_a_phase_that_says_nothing_at_all_is_not_silent_either() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, details=False, quiet=0.0)
    display.tell(PHASE)
    display.tick()
    assert said(out)[1:] == ["  rollout: 0 s"]


def test_a_line_of_another_kind_is_enough() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, details=False, quiet=3600.0)
    display.tell(PHASE)
    note(display.tell, "engine: starting vLLM")
    progress(display.tell, "episodes", 1, 32)
    display.tick()
    assert said(out)[1:] == ["  engine: starting vLLM"]


def test_a_log_has_no_progress() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, details=True)
    display.tell(PHASE)
    progress(display.tell, "episodes", 1, 32)
    display.tick()
    assert len(said(out)) == 1


def test_a_closed_terminal_does_not_end_the_night() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, details=False, quiet=0.0)
    out.close()
    display.tell(PHASE)
    display.tick()
