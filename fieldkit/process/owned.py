"""Processes that we own: started with a mark, found again by it, ended without touching others.

A server outlives the program that started it, and a killed server leaves children behind that hold
all its memory. So every process is started with a marker in its environment (which its children
inherit), written to a ledger *before* it starts, and recognised later by pid, start time and boot
together (`fieldkit.process.ledger`). Nothing here ever signals a process that neither carries the
marker nor is, by all three, the one that was started with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fieldkit.errors import BadInput, Unavailable
from fieldkit.process.descriptor import READ, is_ready

MARKER_VARIABLE = "FIELDKIT_OWNER"
"""The environment variable that carries the marker."""
LEDGER_VARIABLE = "FIELDKIT_LEDGER"
"""The one with the ledger's path: it names the owner even where the ledger has been deleted."""
KEPT_VARIABLE = "SPT_NOENV"
"""The one that tells setproctitle to leave the environment, and so these marks, as it is."""
DROPPED_UID = 65534
"""The user that root's processes become to drop its rights (nobody's number)."""

_START_TIME_FIELD = 22  # of /proc/PID/stat, counted from 1: start time in clock ticks since boot
_STATE_FIELD = 3
_TRACKER = b"multiprocessing.resource_tracker"
_ORPHAN_SECONDS = 3.0  # how long children may take to follow their leader
_KILL_SECONDS = 3.0  # how long a process may take to go after SIGKILL

# Children that this process started for a ledger, kept so that they are reaped when they end: an
# ended child that nobody waits for stays a zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


def boot_id() -> str:
    """The kernel's random identity of this boot: pids and start times mean nothing in another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def since_boot() -> float:
    """Seconds on the clock that nobody can set; it also runs while the machine is asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Owned:
    """One process in the ledger.

    pid and start_time (clock ticks since boot) are None between "about to start" and "started".
    parent: pid of the starter; None in an early ledger. started_at: Unix seconds. info: JSON-ready
    values that the owner of this entry wants to keep.
    """

    name: str
    marker: str
    pid: int | None = None
    start_time: int | None = None
    boot_id: str = field(default_factory=boot_id)
    parent: int | None = None
    command: tuple[str, ...] = ()
    log: str = ""
    started_at: float = field(default_factory=time.time)
    info: dict[str, Any] = field(default_factory=dict)


def read_proc(pid: int, name: str) -> bytes:
    """The file /proc/PID/`name`; empty where the process is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def start_time(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None if it is gone or a zombie."""
    # The second field is the name in parentheses and may itself hold spaces and parentheses.
    after_name = read_proc(pid, "stat").rpartition(b")")[2].split()
    if not after_name or after_name[_STATE_FIELD - 3] in (b"Z", b"X"):
        return None
    return int(after_name[_START_TIME_FIELD - 3])


def is_running(owned: Owned) -> bool:
    """Whether this process is alive: same boot, same pid, same start time."""
    if owned.pid is None or owned.start_time is None or owned.boot_id != boot_id():
        return False  # no start time: it ended before that could be read
    return start_time(owned.pid) == owned.start_time


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with. Empty if it is gone or another user's."""
    pairs = (entry.partition(b"=") for entry in read_proc(pid, "environ").split(b"\0") if entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def own_marks() -> dict[str, str]:
    """The marks that this process was started with, for a child with an environment of its own."""
    names = (MARKER_VARIABLE, LEDGER_VARIABLE, KEPT_VARIABLE)
    return {name: os.environ[name] for name in names if name in os.environ}


def command_line(pid: int) -> bytes:
    """A process's arguments joined by NUL; empty if it is gone."""
    return read_proc(pid, "cmdline")


class Handle:
    """A process held by a pidfd, so that a signal can never reach a later owner of its pid."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self.is_tracker = _TRACKER in command_line(pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; without effect on a process that has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        os.close(self.fd)


def family(marker: str) -> list[int]:
    """Pids of all live processes that carry `marker`, in ascending order.

    Only this user's; for root also those that dropped root's rights. Raises `BadInput` for a marker
    that is empty or no text.
    """
    with _handles(marker) as handles:
        return [h.pid for h in handles]


def left_behind(owned: Owned) -> list[int]:
    """Pids that carry the marker of a process that has ended and do not follow it in a moment."""
    with _handles(owned.marker) as handles:
        return [h.pid for h in _wait(handles, _ORPHAN_SECONDS)]


@dataclass(frozen=True)
class Marked:
    """A live process that carries a marker. ledger: the path in its environment."""

    pid: int
    marker: str
    ledger: Path


def marked() -> list[Marked]:
    """All live marked processes of this user, this one included, in ascending order of pid.

    Only those that see the same files as we do: the path of a ledger means nothing in another root.
    So a command in a sandbox cannot claim to be one of them.
    """
    return [m for pid in psutil.pids() if (m := _read_mark(pid)) is not None]


def _read_mark(pid: int) -> Marked | None:
    try:
        if not _is_ours(pid) or start_time(pid) is None:
            return None
        if not Path(f"/proc/{pid}/root").samefile("/"):
            return None
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    found = environment(pid)
    if not found.get(MARKER_VARIABLE) or LEDGER_VARIABLE not in found:
        return None
    return Marked(pid, found[MARKER_VARIABLE], Path(found[LEDGER_VARIABLE]))


def _is_ours(pid: int) -> bool:
    """Whether a process has a user that ours can have; its marks decide."""
    user = Path(f"/proc/{pid}").stat().st_uid
    return user == os.getuid() or (os.getuid() == 0 and user == DROPPED_UID)


@contextlib.contextmanager
def _handles(marker: str, leader: Owned | None = None) -> Iterator[list[Handle]]:
    """All that carry the marker, and the leader, which may have written over its own. Raises
    `BadInput` for what can be no marker: nothing is opened for one that others lack too."""
    if not isinstance(marker, str) or not marker:
        raise BadInput(f"marker {marker!r}: a process is known by a text that is not empty")
    handles: list[Handle] = []
    try:
        for pid in psutil.pids():
            handle = _open_if_ours(pid, marker, leader)
            if handle is not None:
                handles.append(handle)
        yield handles
    finally:
        for handle in handles:
            handle.close()


def _open_if_ours(pid: int, marker: str, leader: Owned | None) -> Handle | None:
    """Open, then read: what is read belongs to the process that the pidfd holds."""
    if pid == os.getpid():
        return None
    try:
        if not _is_ours(pid):
            return None
        fd = os.pidfd_open(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    leads = leader is not None and leader.pid == pid and is_running(leader)
    if (leads or environment(pid).get(MARKER_VARIABLE) == marker) and not _ended(fd):
        return Handle(pid, fd)
    os.close(fd)
    return None


def _ended(fd: int) -> bool:
    return is_ready(fd, READ)


def _wait(handles: Sequence[Handle], seconds: float) -> list[Handle]:
    """Wait until all have ended or the time is over; return those still alive."""
    deadline = time.monotonic() + seconds
    left = list(handles)
    while left:
        poller = select.poll()
        for handle in left:
            poller.register(handle.fd, select.POLLIN)
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poller.poll(remaining * 1000):
            break
        left = [h for h in left if not _ended(h.fd)]
    _reap()
    return [h for h in left if not _ended(h.fd)]


def reap_later(child: subprocess.Popen[bytes]) -> None:
    """Have a child of this process reaped, once it has ended, by the next wait for any process."""
    _children[child.pid] = child


def _reap() -> None:
    for pid, child in [*_children.items()]:
        if child.poll() is not None:
            _children.pop(pid, None)  # another thread may have been here


def wait_ended(owned: Owned, seconds: float) -> bool:
    """Wait up to `seconds` for a process to end; True when it has (or was not running)."""
    if owned.pid is None:
        return True
    try:
        fd = os.pidfd_open(owned.pid)
    except ProcessLookupError:
        return True
    handle = Handle(owned.pid, fd)
    try:
        return not is_running(owned) or not _wait([handle], seconds)
    finally:
        handle.close()


def terminate(owned: Owned, grace_seconds: float) -> list[int]:
    """End a process and everything it started; return the pids that were ended.

    SIGTERM to the leader (to all, where the leader is gone) and up to `grace_seconds` for it to end
    by itself; a moment for the others to follow; then SIGKILL to what is left, Python's resource
    tracker last, because it removes the shared memory of the others. Raises `Unavailable` that
    names what survived, and `BadInput`, with nothing signalled, for an entry without a marker.
    """
    ended: list[int] = []
    with _handles(owned.marker, owned) as handles:
        ended += [h.pid for h in handles]
        leader = [h for h in handles if h.pid == owned.pid]
        for handle in leader or [h for h in handles if not h.is_tracker]:
            handle.signal(signal.SIGTERM)
        _wait(leader, grace_seconds)
        _wait(handles, min(grace_seconds, _ORPHAN_SECONDS))
    for with_tracker in (False, True):
        # Looked up again: a process may have started while the others were being ended.
        with _handles(owned.marker, owned) as handles:
            ended += [h.pid for h in handles if h.pid not in ended]
            victims = [h for h in handles if with_tracker or not h.is_tracker]
            for handle in victims:
                handle.signal(signal.SIGKILL)
            _wait(handles if with_tracker else victims, _KILL_SECONDS)
            # Once the others are gone the tracker cleans up after them and ends by itself.
            _wait([h for h in handles if h.is_tracker], _KILL_SECONDS)
    with _handles(owned.marker, owned) as handles:
        left = [h.pid for h in handles]
    if left:
        raise Unavailable(
            f"{owned.name}: process(es) {left} did not end after SIGKILL (stuck in the kernel?); "
            f"look at them with `ps -o pid,stat,wchan,cmd -p {','.join(map(str, left))}`"
        )
    return ended
