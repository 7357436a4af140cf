"""What a terminal cannot show, and a reader that has read enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fieldkit.errors import Shortage
from fieldkit.lineage import LineageStore
from tests.fieldkit.compat.test_compat_lineage import trial

FIELDKIT = "from fieldkit.cli.command_line import main; main()"


@pytest.fixture(params=["grpo", "fieldkit"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A command that prints a table with characters of its own."""
    if request.param == "grpo":
        return [sys.executable, "-P", "-m", "scripts.cli", "reward", "explain"]
    for exp_id, parent in (("a", ""), ("b", "a")):
        LineageStore(tmp_path).append(trial(exp_id, parent))
    return [sys.executable, "-P", "-c", FIELDKIT, "lineage", str(tmp_path)]


def test_a_latin_1_terminal_gets_every_table(command: list[str]) -> None:
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "?" in ended.stdout.decode("latin-1")


def test_a_closed_pipe_ends_a_command_as_it_ends_any_unix_tool(command: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert ended.returncode == -signal.SIGPIPE
    assert ended.stderr == b""


def test_a_command_without_an_output_does_its_work(command: list[str]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    ended = subprocess.run(closed, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_an_output_on_a_full_disk_is_a_shortage_in_one_line(command: list[str]) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=env, check=False)
    assert ended.returncode == Shortage.exit_code
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith("error: no space left on this disk")
