"""Which CPUs a sandboxed command may use, and what comes before it.

A command has one CPU. It starts on one of the first half; once it has had its share it goes
on, on one of the second half, behind everything else there. So whatever it does, small commands of
other episodes neither queue behind it nor depend on the scheduler's idea of what is fair: on two
cores under Linux 6.18 fifty busy pipes that could run anywhere kept a runnable process of another
session waiting for up to 54 s, and pinned to one CPU for 0.05 s (docs/LOG.md).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Collection
from pathlib import Path

BUSY_SECONDS = 0.1
"""Processor time after which a command goes behind others; most take 0.02."""

_CROWD = 8  # processes of a command; honest work has fewer that are busy at once
_LEAST_NICE = 19  # as far as nice goes: 64 processes weigh as much as one of another episode
# A session's nice value. A box then weighs a third of another and does not starve; a crowd may.
_SESSION_NICE, _CROWD_SESSION_NICE = "5", "19"

_turns = itertools.count()


def first_cpu() -> int:
    """Where the next command starts: each of the first half in turn."""
    first, _ = _halves()
    return first[next(_turns) % len(first)]


def put_behind(box: int, pids: Collection[int]) -> None:
    """Let others come before a box; what it starts from now on is behind, too.

    box: its first process, the leader of its session; pids: all of its processes.

    Both kinds of nice are needed: where the kernel shares out among sessions first, a process's
    counts within its session only (sched(7), autogroup); where it does not, the session's is void.
    None of it can be taken back from inside the box.
    """
    crowded = len(pids) > _CROWD
    with contextlib.suppress(OSError):  # no such file, or (EAGAIN) asked for too often: next look
        session_nice = _CROWD_SESSION_NICE if crowded else _SESSION_NICE
        Path(f"/proc/{box}/autogroup").write_text(session_nice, encoding="utf-8")
    _, second = _halves()
    cpu = {second[box % len(second)]}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                _put_thread_behind(int(thread.name), cpu, crowded)


def _put_thread_behind(thread: int, cpu: set[int], crowded: bool) -> None:
    os.sched_setaffinity(thread, cpu)
    os.setpriority(os.PRIO_PROCESS, thread, _LEAST_NICE)
    if crowded:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def _halves() -> tuple[list[int], list[int]]:
    """Of the CPUs that this process may use; the same one twice where there is but one."""
    usable = sorted(os.sched_getaffinity(0), key=_core)
    middle = max(1, len(usable) // 2)
    return usable[:middle], usable[middle:] or usable


@functools.cache
def _core(cpu: int) -> tuple[int, int]:
    """Sorts threads of one core next to each other, so that a half holds whole cores."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        first = siblings.read_text(encoding="utf-8").replace("-", ",").split(",")[0]
    except OSError:
        return cpu, cpu
    return int(first), cpu
