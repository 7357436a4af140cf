"""What a terminal cannot show, and a reader that has read enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

COMMAND = [sys.executable, "-P", "-m", "scripts.cli", "reward", "explain"]


def test_a_latin_1_terminal_gets_every_table() -> None:
    ended = subprocess.run(
        COMMAND, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "?" in ended.stdout.decode("latin-1")


def test_a_closed_pipe_ends_a_command_as_it_ends_any_unix_tool() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run(COMMAND, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert ended.returncode == -signal.SIGPIPE
    assert ended.stderr == b""
