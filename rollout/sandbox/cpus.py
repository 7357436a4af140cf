"""The CPUs that a sandboxed command may use, and its priority.

A command has one CPU. It starts on one of the first half. Once it has used its share it moves to
one of the second half, with the lowest priority. So small commands of other episodes never queue
behind it and do not depend on the scheduler's fairness: on two cores under Linux 6.18 fifty busy
pipes that could run anywhere kept a runnable process of another session waiting for up to 54 s, and
pinned to one CPU for 0.05 s (docs/LOG.md).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Collection
from pathlib import Path

BUSY_SECONDS = 0.1
"""CPU seconds after which a command gets the lowest priority; most take 0.02."""

_CROWD = 8  # processes of a command; ordinary work has fewer that are busy at once
_LEAST_NICE = 19  # the largest value: 64 such processes weigh as much as one of another episode
# A session's nice value. A box then weighs a third of another and does not starve; a crowd may.
_SESSION_NICE, _CROWD_SESSION_NICE = "5", "19"

_turns = itertools.count()


def first_cpu() -> int:
    """The CPU on which the next command starts: each of the first half in turn."""
    first, _ = _halves()
    return first[next(_turns) % len(first)]


def put_behind(box: int, pids: Collection[int]) -> None:
    """Give a box the lowest priority, which processes that it starts later inherit.

    box: its first process, the leader of its session; pids: all of its processes.

    Both nice values are needed: if the kernel divides CPU time among sessions first, a process's
    value counts only within its session (sched(7), autogroup); if not, the session's has no effect.
    Neither can be changed back from inside the box.
    """
    crowded = len(pids) > _CROWD
    with contextlib.suppress(OSError):  # no such file, or (EAGAIN) set too often
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
    """The two halves of the CPUs that this process may use; the same one twice if there is only
    one."""
    usable = sorted(os.sched_getaffinity(0), key=_core)
    middle = max(1, len(usable) // 2)
    return usable[:middle], usable[middle:] or usable


@functools.cache
def _core(cpu: int) -> tuple[int, int]:
    """A sort key that puts threads of one core next to each other, so that a half has whole
    cores."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        first = siblings.read_text(encoding="utf-8").replace("-", ",").split(",")[0]
    except OSError:
        return cpu, cpu
    return int(first), cpu
