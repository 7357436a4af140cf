"""What is written to a terminal or a pipe that takes nothing: it is not waited for."""

from __future__ import annotations

import io
import os
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from scripts.base.display import Display, make_display
from scripts.base.events import note
from scripts.base.unblocked import Unblocked, unblocked

LINES, LINE = 400, "x" * 1000
"""More than a terminal, a pipe, and what is kept for them hold together."""


def tell(out: IO[str]) -> Display | None:
    """Tell a night to the display of this stream; None where that did not come to its end."""
    told: list[Display] = []

    def night() -> None:
        display = make_display(details=False, out=out)
        for n in range(LINES):
            note(display.tell, f"line {n}: {LINE}")
        told.append(display)

    thread = threading.Thread(target=night, daemon=True)
    thread.start()
    thread.join(20)
    return told[0] if told else None


def test_a_terminal_after_ctrl_s_holds_nobody_up_and_shows_the_lines_after_ctrl_q() -> None:
    person, fd = os.openpty()
    with open(fd, "w", encoding="utf-8") as terminal:
        termios.tcflow(fd, termios.TCOOFF)
        display = tell(terminal)
        termios.tcflow(fd, termios.TCOON)
        assert display is not None
        note(display.tell, "the next line")
        seen = b""
        while b"line 0:" not in seen:  # far more than that is to come
            seen += os.read(person, 65536)
        display.close()
    os.close(person)


@pytest.fixture
def pipe() -> Iterator[tuple[int, IO[str]]]:
    read, write = os.pipe()
    with open(write, "w", encoding="utf-8") as out:
        yield read, out
        os.close(read)


def test_a_pipe_whose_reader_stands_still_holds_nobody_up(pipe: tuple[int, IO[str]]) -> None:
    read, out = pipe
    assert tell(out) is not None
    assert b"line 0: x" in os.read(read, 65536)


def test_a_reader_that_is_slow_gets_every_word(pipe: tuple[int, IO[str]]) -> None:
    """More than the pipe holds, and read only once all is said."""
    read, out = pipe
    stream = unblocked(out)
    text = "".join(f"{n}\n" for n in range(30_000))
    stream.write(text)
    got: list[bytes] = []

    def reading() -> None:
        while sum(map(len, got)) < len(text):
            got.append(os.read(read, 4096))

    reader = threading.Thread(target=reading, daemon=True)
    reader.start()
    stream.close()
    reader.join(20)
    assert b"".join(got).decode() == text


def test_the_shell_keeps_a_descriptor_that_blocks(pipe: tuple[int, IO[str]]) -> None:
    out = pipe[1]
    with unblocked(out) as stream:
        assert isinstance(stream, Unblocked)
        assert os.get_blocking(out.fileno())


def test_a_file_and_what_has_no_descriptor_are_written_as_they_are(tmp_path: Path) -> None:
    memory = io.StringIO()
    assert unblocked(memory) is memory
    with open(tmp_path / "log", "w", encoding="utf-8") as file:
        assert unblocked(file) is file
