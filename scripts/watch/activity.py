"""The state of a run, from the journal's last entries and the lock's holder.

A killed phase leaves a start without an end in the journal, so an entry counts as current only if
the process that wrote it is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psutil

from fieldkit.files.journal import Entry
from scripts.run.next_phase import Phase
from scripts.run.state import PAUSE, of_the_night

_CLOCK_SLACK_SECONDS = 2.0  # between the clock of the journal and a process's age
_AT_ONCE = 2  # phases


class State(StrEnum):
    """The state of a run."""

    FRESH = "not started"
    WORKING = "working"
    BETWEEN = "between phases"
    WAITING = "waiting"
    IDLE = "no phase is running"
    STOPPED = "stopped"
    DONE = "done"
    CONVERGED = "the pool has converged"
    RECORD = "a copy of a night, without its journal"


@dataclass(frozen=True)
class Activity:
    """The state, and the last phase with its Unix time and the pid that wrote it.

    why: the reason of a stop or a wait. beside: the phase that runs beside that one. until: the
    Unix time at which a loop that waits does the phase again.
    """

    state: State
    phase: str = ""
    since: float = 0.0
    pid: int | None = None
    why: str = ""
    beside: str = ""
    until: float = 0.0

    @property
    def phases(self) -> str:
        """The phase, or both, in words."""
        return f"{self.phase}, {self.beside} beside it" if self.beside else self.phase


def activity(
    entries: Sequence[Entry], loop: int | None, is_alive: Callable[[Entry], bool]
) -> Activity:
    """Derive the state. loop: pid of the lock's holder. is_alive: whether an entry's writer is.

    A phase that was typed after the loop's end counts while it runs and where it was killed; else
    only if it took the night further.
    """
    between = State.IDLE if loop is None else State.BETWEEN
    if working := _at_work(entries, is_alive):
        first, *others = working
        beside = str(others[0].data.get("phase", "")) if others else ""
        phase = str(first.data.get("phase", ""))
        return Activity(State.WORKING, phase, first.time, first.pid, beside=beside)
    for e in reversed(of_the_night(entries)):
        phase = str(e.data.get("phase", ""))
        if e.event == PAUSE and e.pid == loop:
            until = e.time + float(e.data.get("seconds", 0.0))
            return Activity(State.WAITING, phase, e.time, why=_error(e), until=until)
        if e.event in ("phase_start", "phase_end"):
            if e.data.get("exit") == 0 or loop is not None:  # a loop does some of the others again
                return Activity(between, phase, e.time)
            why = _error(e) if e.event == "phase_end" else f"the {phase} phase was killed"
            return Activity(State.STOPPED, phase, e.time, why=why)
        if e.event == "loop_end" and "error" in e.data:
            return Activity(State.STOPPED, "", e.time, why=_error(e))
        if e.event == "loop_end":
            endings = {Phase.DONE.value: State.DONE, Phase.CONVERGED.value: State.CONVERGED}
            following = str(e.data.get("next"))
            state = endings.get(following, State.STOPPED)
            why = f"before {following}" if state is State.STOPPED else ""
            return Activity(state, "", e.time, why=why)
        if e.event == "loop_start":
            return Activity(between, "", e.time)
    return Activity(State.FRESH)


def _error(entry: Entry) -> str:
    """The error that ended a phase or a loop, or that it waits for."""
    return f"exit {entry.data.get('exit')}: {entry.data.get('error', '')}"


def _at_work(entries: Sequence[Entry], is_alive: Callable[[Entry], bool]) -> list[Entry]:
    """The starts of the phases that run now, oldest first. They are two at most: a rollout may run
    beside a training."""
    found, ended, starts = [], set[int](), 0
    for e in reversed(entries):
        if e.event in ("loop_start", "loop_end") or starts == _AT_ONCE:
            break
        if e.event == "phase_end":
            ended.add(e.pid)
        elif e.event == "phase_start":
            starts += 1
            if e.pid not in ended and is_alive(e):
                found.append(e)
    return found[::-1]


def lives(entry: Entry, loop: int | None = None) -> bool:
    """Whether the process that wrote the entry is alive; a later process with its pid is not it.

    loop: pid of the lock's holder. It and its children are known without a clock, which somebody
    may have set since.
    """
    try:
        process = psutil.Process(entry.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if loop is not None and loop in (entry.pid, process.ppid()):
            return True
        return process.create_time() < entry.time + _CLOCK_SLACK_SECONDS
    except psutil.Error:
        return False
