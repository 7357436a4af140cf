"""A process ends when its parent is killed, by the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

import pytest

from fieldkit.process.parent import end_with_parent, ended_with

PR_GET_PDEATHSIG = 2  # linux/prctl.h

PROGRAM = """
import os, subprocess, sys
from fieldkit.process.parent import ended_with
asks, waits = "end_with_parent()", "print(1, flush=True); signal.pause()"
code = "import signal; from fieldkit.process.parent import end_with_parent; "
code += (asks + "; " if sys.argv[1] == "itself" else "") + waits
child = subprocess.Popen(
    [sys.executable, "-c", code],
    stdout=subprocess.PIPE,
    preexec_fn=ended_with(os.getpid()) if sys.argv[1] == "its parent" else None,
)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("by", "ends"), [("itself", True), ("its parent", True), ("", False)])
def test_a_child_for_which_that_was_asked_ends_with_a_killed_parent(by: str, ends: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, by], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    child = os.pidfd_open(pid)
    parent.kill()
    parent.wait()
    try:
        assert bool(select.select([child], [], [], 10 if ends else 0.5)[0]) is ends
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def signal_at_its_parents_end() -> int:
    """The signal that the kernel will send this process; 0 for none."""
    number = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0) == 0
    return number.value


def test_a_parent_may_ask_it_for_its_child() -> None:
    code = "import ctypes; n = ctypes.c_int(-1); libc = ctypes.CDLL(None)\n"
    code += f"libc.prctl({PR_GET_PDEATHSIG}, ctypes.byref(n), 0, 0, 0); print(n.value)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=ended_with(os.getpid())
    )
    assert int(child.communicate()[0]) == signal.SIGTERM


def test_it_can_be_taken_back() -> None:
    end_with_parent(signal.SIGTERM)
    try:
        assert signal_at_its_parents_end() == signal.SIGTERM
    finally:
        end_with_parent(0)
    assert signal_at_its_parents_end() == 0
