"""The live page: it fits the terminal, shows nothing that could harm it, and ends alone."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fieldkit.files.journal import Journal
from fieldkit.records import Action, ActionKind
from scripts.watch.frame import BARS, frame, spark
from scripts.watch.sight import Episode, Sight, Watcher
from tests.scripts.evals import trajectory
from tests.scripts.made_night import make_night, turn

GRPO = [sys.executable, "-P", "-m", "scripts.cli"]


def sight_of(root: Path, n_steps: int = 12) -> Sight:
    return Watcher(make_night(root, n_steps=n_steps).folder).look()


def drawn(sight: Sight, height: int | None = None, width: int = 80) -> list[str]:
    """The lines of one frame."""
    console = Console(width=width, height=height or 100, force_terminal=False)
    with console.capture() as captured:
        console.print(frame(sight, console, height))
    return captured.get().splitlines()


def test_what_matters_is_on_the_page(tmp_path: Path) -> None:
    page = "\n".join(drawn(sight_of(tmp_path)))
    assert "night · step 12/" in page
    assert re.search(r"12 +0\.700 +100 % +50 % +3\.00 +0\.0120 +6/8 +80", page)
    assert re.search(r"stops  *[▁-█]+ 8 % → 100 %", page)
    assert "held-out step 12: passed 12/24, stops 100 %, 3.0 turns" in page
    assert "GiB available" in page
    assert "last finished: p001, attempt 1 of step 12" in page
    assert "failed (2/4 assertions), stopped by itself after 3 turns" in page


@pytest.mark.parametrize("height", [24, 30, 50])
def test_the_page_fits_the_terminal(tmp_path: Path, height: int) -> None:
    sight = sight_of(tmp_path, n_steps=40)
    long = trajectory("p" * 90, "sha-1", 4, 12, False)
    commands = [Action(ActionKind.RUN, f"echo {i} {'x' * 200}\n" * 5) for i in range(12)]
    turns = tuple(
        replace(t, text=a.command, action=a) for t, a in zip(long.turns, commands, strict=True)
    )
    episode = Episode(replace(long, turns=turns), "step 40")
    lines = drawn(replace(sight, episode=episode, said="y" * 300), height)
    assert len(lines) == height
    assert max(map(len, lines)) <= 80
    assert any("lines …" in line for line in lines), "its middle is left out"


def test_a_run_that_has_just_begun_has_a_page_too(tmp_path: Path) -> None:
    page = "\n".join(drawn(sight_of(tmp_path, n_steps=1)))
    assert "step 1/" in page


def test_a_hostile_transcript_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[bold]no markup[/bold]"
    bad = replace(turn(evil), action=Action(ActionKind.RUN, evil), observation=evil)
    episode = Episode(replace(trajectory(evil, "s", 4, 1, True), turns=(bad,)), "step 1")
    page = "\n".join(drawn(replace(sight_of(tmp_path), episode=episode, said=evil)))
    assert "\x1b" not in page
    assert "\x07" not in page
    assert "␛[2J[bold]no markup[/bold]" in page


def test_a_stopped_run_says_why_and_what_to_type(tmp_path: Path) -> None:
    folder = make_night(tmp_path).folder
    Journal(folder.journal).append("phase_end", phase="train", exit=5, error="1 GiB is missing")
    page = "\n".join(drawn(Watcher(folder).look()))
    assert "exit 5: 1 GiB is missing" in page
    assert f"`grporun{folder.path}`goeson" in re.sub(r"[│\s]", "", page)


def test_trouble_is_told(tmp_path: Path) -> None:
    sight = replace(sight_of(tmp_path), troubles=("step.json:1: not valid JSON",))
    assert "! step.json:1: not valid JSON" in "\n".join(drawn(sight))


def test_a_spark_rises_with_its_values() -> None:
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == BARS
    assert spark([7, 0], 8) == "█▁"
    assert spark([0.5], 8) == "▁"


def test_a_spark_of_a_rate_stands_between_none_and_all() -> None:
    assert spark([0.0, 0.1], 8, (0.0, 1.0)) == "▁▂"


def test_a_spark_of_many_values_is_as_wide_as_it_may_be_and_keeps_both_ends() -> None:
    line = spark([i / 999 for i in range(1000)], 18)
    assert len(line) == 18
    assert line[0] == "▁"
    assert line[-1] == "█"
    assert list(line) == sorted(line)


def test_one_frame_for_a_log(tmp_path: Path) -> None:
    folder = make_night(tmp_path).folder.path
    shown = subprocess.run(
        [*GRPO, "watch", str(folder), "--once"], capture_output=True, text=True, check=True
    )
    assert "night · step 8/" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_a_run_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    shown = subprocess.run(
        [*GRPO, "watch", str(tmp_path / "none"), "--once"], capture_output=True, text=True
    )
    assert shown.returncode == 2
    assert "no such run" in shown.stderr


def test_ctrl_c_ends_the_watch_and_gives_the_terminal_back(tmp_path: Path) -> None:
    folder = make_night(tmp_path).folder.path
    pid, terminal = pty.fork()
    if pid == 0:  # the child: a terminal of its own, as over ssh
        os.environ.update(TERM="xterm", COLUMNS="80", LINES="24")
        # Tests that were started in the background have it ignored, which a program inherits.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(sys.executable, [*GRPO, "watch", str(folder)])
    seen = _read_until(terminal, b"step 8/")
    os.write(terminal, b"\x03")
    seen += _read_until(terminal, b"\x1b[?1049l")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\x1b[?1049h" in seen, "it drew on a screen of its own"
    assert b"Traceback" not in seen


def _read_until(terminal: int, wanted: bytes) -> bytes:
    """Everything the terminal was told until `wanted`. Fails after 30 s."""
    seen = b""
    deadline = time.monotonic() + 30
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"never said {wanted!r}: {seen!r}"
        seen += os.read(terminal, 65536)
    return seen
