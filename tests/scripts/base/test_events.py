"""What a phase tells its parent, and what it does when nobody listens any more."""

from __future__ import annotations

import subprocess
import sys

from scripts.base.events import Event, EventKind, read_event

TELLER = """
import sys
from scripts.cli.app import main
from scripts.cli import app
from scripts.base.events import Event, EventKind, tell_parent
tell_parent(Event(EventKind.NOTE, "up"))
sys.stdin.readline()
app.app = lambda: tell_parent(Event(EventKind.NOTE, "is anyone there?"))
main()
"""


def test_a_phase_whose_loop_was_killed_ends_as_interrupted_and_not_as_a_bug() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", TELLER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as phase:
        assert phase.stdin is not None
        assert phase.stdout is not None
        assert phase.stderr is not None
        assert read_event(phase.stdout.readline()) == Event(EventKind.NOTE, "up")
        phase.stdout.close()
        phase.stdin.write("go on\n")
        phase.stdin.close()
        said = phase.stderr.read()
    assert phase.returncode == 130
    assert said == "error: the loop that started this phase is gone; `grpo run` goes on\n"


def test_what_a_library_prints_is_no_event() -> None:
    assert read_event("Loading weights: 100%") is None
    assert read_event('{"kind": "none"}') is None
