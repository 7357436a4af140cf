"""What is kept on a node ends with all that it started, whoever asks for its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True);"
    " signal.pause()"
)
"""A process that does not end at SIGTERM; it says when that is so."""

PARENT = f"""
import os, pathlib, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.PIPE
)
child.stdout.readline()
pathlib.Path(sys.argv[1]).write_text(f"{{child.pid}} {{os.environ['TMPDIR']}}")
"""


class Kept:
    """A command in the hands of a keeper. status: its exit code, once it is over."""

    def __init__(self, *command: str) -> None:
        reading, status = os.pipe()
        self.owner = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollout.cluster.keeper", str(status), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(status,),
        )
        os.close(status)
        self._reading = reading

    def let_go(self) -> None:
        """What the owner's death does."""
        assert self.owner.stdin is not None
        self.owner.stdin.close()

    def status(self) -> int:
        with os.fdopen(self._reading) as status:
            return int(status.read())


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[Path]:
    """A file in which PARENT notes its child, which does not outlive the test."""
    yield (file := tmp_path / "child")
    if file.exists() and psutil.pid_exists(pid := int(file.read_text().split()[0])):
        os.kill(pid, signal.SIGKILL)


def test_output_and_exit_code_are_those_of_the_command() -> None:
    kept = Kept(sys.executable, "-c", "import sys; print('out'); sys.exit('wrong')")
    assert kept.status() == 1
    out, err = kept.owner.communicate()
    assert (out, err) == ("out\n", "wrong\n")


def test_a_signal_that_ended_it_is_told() -> None:
    kept = Kept(sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert kept.status() == -signal.SIGKILL


def test_a_command_that_is_not_there_is_an_error_that_names_it() -> None:
    kept = Kept("/no/such/program")
    assert kept.status() == 4
    assert "error: /no/such/program: No such file or directory" in kept.owner.communicate()[1]


def test_what_the_command_leaves_is_ended_though_it_has_a_session_of_its_own(noted: Path) -> None:
    kept = Kept(sys.executable, "-c", PARENT, str(noted))
    assert kept.status() == 0
    child, scratch = noted.read_text(encoding="utf-8").split()
    assert not psutil.pid_exists(int(child))
    assert not Path(scratch).exists()


def test_all_of_it_ends_when_the_owner_is_gone(noted: Path) -> None:
    forever = f"{PARENT}\nimport signal; signal.pause()"
    kept = Kept(sys.executable, "-c", forever, str(noted))
    while not noted.exists() or not noted.read_text(encoding="utf-8"):
        assert kept.owner.poll() in (None, 0)
        time.sleep(0.01)
    kept.let_go()
    assert kept.status() == -signal.SIGTERM
    child, scratch = noted.read_text(encoding="utf-8").split()
    assert not psutil.pid_exists(int(child))
    assert not Path(scratch).exists()
