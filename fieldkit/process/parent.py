"""Has the kernel end a process when its parent is gone (prctl(2), PR_SET_PDEATHSIG; Linux).

What counts as the parent is the thread that started the process: one that starts such a process
and ends itself takes it along.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal when its parent ends, from now on; 0: none."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def ended_with(parent: int) -> Callable[[], None]:
    """A `preexec_fn` of `subprocess.Popen`: the child gets SIGTERM when its parent ends.

    parent: the pid of the process that starts it, which may end before the child can ask for that.
    """

    def arm() -> None:  # pragma: no cover - runs between fork and exec
        end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:  # it ended between fork and prctl
            os.kill(os.getpid(), signal.SIGTERM)

    return arm
