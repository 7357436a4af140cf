"""What a person sees: plain lines where there is no terminal, and a panel where there is one."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from rich.console import Console

from scripts.base.display import (
    LiveDisplay,
    Now,
    PlainDisplay,
    log_display,
    panel,
    progress_bar,
)
from scripts.base.events import Event, EventKind, alarm, note, progress

PHASE = Event(EventKind.PHASE, "rollout", figures={"step": 3, "steps": 20, "seconds_left": 1290.0})
FIGURES = {"reward": 0.5, "stop_rate": 0.25, "turns": 9.5, "tokens_per_s": 81.0}


def said(out: io.StringIO) -> list[str]:
    """The lines without their clocks."""
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in out.getvalue().splitlines()]


def test_a_phase_is_announced_with_step_and_time_left() -> None:
    out = io.StringIO()
    PlainDisplay(out, details=False).tell(PHASE)
    assert said(out) == ["step 3/20 · rollout · about 21 min 30 s left"]


def test_how_many_steps_there_will_be_is_not_said_before_it_is_known() -> None:
    out = io.StringIO()
    figures = {"step": 1.0, "seconds_left": 2000.0}
    PlainDisplay(out, details=False).tell(Event(EventKind.PHASE, "rollout", figures=figures))
    assert said(out) == ["step 1 · rollout · about 33 min 20 s left"]


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


def test_a_log_on_a_disk_that_was_full_goes_on_once_there_is_room() -> None:
    class Full(io.StringIO):
        has_room = False

        def flush(self) -> None:
            if not self.has_room:
                raise OSError(errno.ENOSPC, "No space left on device")

    log = Full()
    display = PlainDisplay(log, details=True)
    note(display.tell, "while it is full")
    log.has_room = True
    note(display.tell, "an hour later")
    assert said(log)[-1] == "  an hour later"


def test_ctrl_c_on_a_terminal_that_takes_nothing_more_is_no_error() -> None:
    """As after Ctrl-S: a line waits for room while the signal is told."""
    read, write = os.pipe()
    told: list[bytes] = []
    with open(read, "rb", buffering=0) as person, open(write, "w", encoding="utf-8") as terminal:
        display = PlainDisplay(terminal, details=False)

        def asked(number: int, frame: FrameType | None) -> None:
            note(display.tell, "finishing this step")
            told.append(person.read(65536))  # the terminal goes on

        before = signal.signal(signal.SIGALRM, asked)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            note(display.tell, "x" * 70_000)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert len(told) == 1
        note(display.tell, "it is still there")
        assert b"it is still there" in person.read(65536)


def test_a_log_keeps_a_line_that_is_no_text_and_those_after_it(tmp_path: Path) -> None:
    log = log_display(tmp_path, "loop")
    note(log.tell, "half a pair: \ud800")
    note(log.tell, "the next")
    (file,) = tmp_path.glob("loop-*.log")
    assert [line[8:] for line in file.read_text().splitlines()] == [
        "   half a pair: ?",
        "   the next",
    ]


def test_what_nobody_may_overlook_is_red_on_a_terminal_and_a_line_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    live = LiveDisplay(sys.stdout, details=False)
    note(live.tell, "engine: starting vLLM")
    alarm(live.tell, "there is no sandbox")
    live.close()
    lines = capsys.readouterr().out.splitlines()
    red = [line for line in lines if "\x1b[1;31m" in line]
    assert [line.endswith("there is no sandbox\x1b[0m") for line in red] == [True]
    out = io.StringIO()
    alarm(PlainDisplay(out, details=False).tell, "there is no sandbox")
    assert said(out) == ["  there is no sandbox"]


# --- on a terminal --------------------------------------------------------------------------------


def drawn(now: Now) -> str:
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(panel(now))
    return console.export_text()


def test_the_panel_says_where_the_night_is_how_far_its_phase_and_how_it_goes() -> None:
    now = Now()
    now.take(PHASE)
    progress(now.take, "episodes", 12, 32, **FIGURES)
    top, bar, figures, bottom = drawn(now).splitlines()
    assert top.startswith("╭─ step 3/20 · rollout · about 21 min 30 s left ─")
    assert re.search("━+ +12/32 episodes, 0 s", bar)
    assert "reward 0.500   stops 25 %   turns 9.5   81 tokens/s" in figures
    assert bottom.startswith("╰─")


def test_the_panel_of_a_phase_that_has_not_counted_anything_yet_shows_its_clock() -> None:
    now = Now()
    now.take(Event(EventKind.PHASE, "start"))
    top, clock, _ = drawn(now).splitlines()
    assert top.startswith("╭─ start ─")
    assert "0 s" in clock
    assert "━" not in clock


def test_a_command_that_only_counts_says_on_stderr_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.base.display._QUIET_SECONDS", 0.0)
    with progress_bar() as count:
        count("demonstrations", 3, 40)
    out, err = capsys.readouterr()
    assert out == ""
    assert "3/40 demonstrations" in err


# A night told to whatever display stdout asks for. It goes on when it is told to.
TELL = """
import sys
from scripts.base.display import make_display
from scripts.base.events import Event, EventKind, note, progress
display = make_display(details=False)
print(type(display).__name__, file=sys.__stderr__, flush=True)  # Rich takes sys.stderr over
display.tell(Event(EventKind.PHASE, "rollout", figures={"step": 3, "steps": 20}))
note(display.tell, "engine: starting vLLM")
sys.stdin.readline()
display._refreshed = 0.0
progress(display.tell, "episodes", 12, 32, reward=0.5)
display.tell(Event(EventKind.FINISHED, "step 3 is trained"))
display.close()
"""


@contextmanager
def at_a_terminal() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The night above on a pseudo-terminal, and the end of it that a person looks at."""
    person, terminal = os.openpty()
    night = subprocess.Popen(
        [sys.executable, "-P", "-c", TELL],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(terminal)
    try:
        yield night, person
    finally:
        night.kill()
        night.communicate()


def read_until(terminal: int, words: str) -> str:
    """What is on the terminal up to these words, or to its end."""
    seen = b""
    while words.encode() not in seen:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # nobody writes to it any more
            break
    return seen.decode(errors="replace")


def test_a_terminal_has_the_lines_above_a_panel_that_is_gone_in_the_end() -> None:
    with at_a_terminal() as (night, terminal):
        assert "step 3/20 · rollout" in read_until(terminal, "engine: starting vLLM")
        night.communicate(b"go on\n")
        after = read_until(terminal, "nothing that is ever said")
        os.close(terminal)
    assert night.returncode == 0
    assert "12/32 episodes" in after
    assert "reward 0.500" in after
    assert "step 3 is trained" in after
    assert after.rfind("\x1b[2K") > after.rfind("episodes"), "the panel is left behind"


def test_a_terminal_that_is_closed_in_the_middle_does_not_end_the_night() -> None:
    with at_a_terminal() as (night, terminal):
        read_until(terminal, "step 3/20 · rollout")
        os.close(terminal)
        _, said = night.communicate(b"go on\n")
    assert said == b"LiveDisplay\n"
    assert night.returncode == 0
