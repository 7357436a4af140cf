"""Keeps one command on a node: it ends with all that it started when its owner is gone.

The owner is Ray's worker process, which may be killed at any moment, and Ray kills the children of
a worker but not theirs. So this program is nobody's child. It waits for the end of the command and
of its stdin, which is a pipe from the owner. Orphans below it become its own children (it is a
subreaper), so none is missed. Nothing else on the node is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import psutil

from fieldkit.errors import Unavailable
from fieldkit.process.parent import ended_with
from rollout.engine.leftovers import SCRATCH_VARIABLE, Leftovers, new_scratch

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_GRACE_SECONDS = 10.0
"""How long the command may take to end after SIGTERM."""
_REST_SECONDS = 3.0
"""How long what it started may take to follow it."""
_STDIN = 0

_libc = ctypes.CDLL(None, use_errno=True)


def keep(command: Sequence[str]) -> int:
    """Run `command` until it ends or stdin does; its exit code.

    The code is negative where a signal ended it. It gets an empty stdin and a private scratch
    folder as TMPDIR, which is removed afterwards.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    scratch = new_scratch()
    notes: dict[str, Any] = {"scratch": str(scratch)}
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            env={**os.environ, SCRATCH_VARIABLE: str(scratch)},
            preexec_fn=ended_with(os.getpid()),
        )
        ended = os.pidfd_open(child.pid)
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        poller.register(_STDIN, select.POLLIN | select.POLLHUP)
        if ended not in {fd for fd, _ in poller.poll()}:  # the owner is gone, or wants its end
            notes["shared"] = dict(Leftovers.of(_below(), notes).shared)
            child.terminate()
            poller.unregister(_STDIN)
            if not poller.poll(_GRACE_SECONDS * 1000):
                child.kill()
        code = child.wait()
        _end_rest()
    finally:
        Leftovers.of((), notes).remove()
    return code


def _below() -> list[int]:
    """Every process that the command started and that lives, itself included."""
    return [p.pid for p in psutil.Process().children(recursive=True)]


def _end_rest() -> None:
    """End what the command left, after a moment to end by itself."""
    rest = psutil.Process().children(recursive=True)
    psutil.wait_procs(rest, timeout=_REST_SECONDS)
    while rest := psutil.Process().children(recursive=True):
        for process in rest:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(rest, timeout=_REST_SECONDS)


def main(status: int, command: Sequence[str]) -> int:
    """Leave the process that called, then keep the command."""
    if os.fork():
        return 0
    os.setsid()  # what is sent to the owner's group passes it by
    code = 1
    try:
        code = keep(command)
    except OSError as e:
        code = Unavailable.exit_code
        print(f"error: {e.filename or command[0]}: {e.strerror}", file=sys.stderr)
    finally:
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it
            os.write(status, str(code).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
