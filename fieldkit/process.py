"""Processes that we own: started with a mark, found again by it, ended without touching others.

A server outlives the program that started it, and a killed server leaves children behind that hold
all its memory. So every process is started with a marker in its environment (which its children
inherit), written to a ledger *before* it starts, and recognised later by pid, start time and boot
together. Nothing here ever signals a process that does not carry the marker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files import read_json, write_json

MARKER_VARIABLE = "FIELDKIT_OWNER"
"""The environment variable that carries the marker."""

_LEDGER_SCHEMA = 1
_START_TIME_FIELD = 22  # of /proc/PID/stat, counted from 1: start time in clock ticks since boot
_STATE_FIELD = 3
_TRACKER = b"multiprocessing.resource_tracker"
_ORPHAN_SECONDS = 3.0  # how long children may take to follow their leader
_KILL_SECONDS = 3.0  # how long a process may take to go after SIGKILL

# Children that this very process started. Kept so that they can be reaped when they end; without a
# reaper an ended child stays a zombie with our pid as its parent.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Owned:
    """One process in the ledger.

    pid and start_time (clock ticks since boot) are None between "about to start" and "started".
    started_at: Unix seconds. info: what the owner of this entry wants to remember, JSON-ready.
    """

    name: str
    marker: str
    pid: int | None
    start_time: int | None
    boot_id: str
    command: tuple[str, ...]
    log: str
    started_at: float
    info: dict[str, Any] = field(default_factory=dict)


def boot_id() -> str:
    """The kernel's random identity of this boot: pids and start times mean nothing in another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses and may itself hold spaces and parentheses.
    after_name = stat.rpartition(")")[2].split()
    if after_name[_STATE_FIELD - 3] in ("Z", "X"):
        return None
    return int(after_name[_START_TIME_FIELD - 3])


def is_running(owned: Owned) -> bool:
    """Whether that very process is alive: same boot, same pid, same start time."""
    if owned.pid is None or owned.boot_id != boot_id():
        return False
    return start_time(owned.pid) == owned.start_time


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with. Empty if it is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def command_line(pid: int) -> bytes:
    """A process's arguments joined by NUL; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class Handle:
    """A process held by a pidfd, so that a signal can never reach a later owner of its pid."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self.is_tracker = _TRACKER in command_line(pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has already ended is left in peace."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        os.close(self.fd)


def family(marker: str) -> list[int]:
    """Pids of all live processes of this user that carry `marker`, in ascending order."""
    with _handles(marker) as handles:
        return [h.pid for h in handles]


@contextlib.contextmanager
def _handles(marker: str) -> Iterator[list[Handle]]:
    handles: list[Handle] = []
    try:
        for entry in sorted(int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()):
            handle = _open_if_marked(entry, marker)
            if handle is not None:
                handles.append(handle)
        yield handles
    finally:
        for handle in handles:
            handle.close()


def _open_if_marked(pid: int, marker: str) -> Handle | None:
    """Open first, look second: what is read then belongs to the process that the pidfd holds."""
    if pid == os.getpid():
        return None
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.getuid():
            return None
        fd = os.pidfd_open(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if environment(pid).get(MARKER_VARIABLE) == marker and not _ended(fd):
        return Handle(pid, fd)
    os.close(fd)
    return None


def _ended(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _wait(handles: Sequence[Handle], seconds: float) -> list[Handle]:
    """Wait until all have ended or the time is over; return those still there."""
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


def _reap() -> None:
    for pid in [pid for pid, child in _children.items() if child.poll() is not None]:
        del _children[pid]


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
    in good order; a moment for the others to follow; then SIGKILL to what is left, Python's
    resource tracker last, because it removes the shared memory of the others. Raises `Unavailable`
    naming what survived even that.
    """
    ended: list[int] = []
    with _handles(owned.marker) as handles:
        ended += [h.pid for h in handles]
        leader = [h for h in handles if h.pid == owned.pid]
        for handle in leader or [h for h in handles if not h.is_tracker]:
            handle.signal(signal.SIGTERM)
        _wait(leader, grace_seconds)
        _wait(handles, min(grace_seconds, _ORPHAN_SECONDS))
    for with_tracker in (False, True):
        # Looked up afresh: a process may have been born while the others were being ended.
        with _handles(owned.marker) as handles:
            ended += [h.pid for h in handles if h.pid not in ended]
            victims = [h for h in handles if with_tracker or not h.is_tracker]
            for handle in victims:
                handle.signal(signal.SIGKILL)
            _wait(handles if with_tracker else victims, _KILL_SECONDS)
            # With the others gone the tracker ends by itself, after cleaning up behind them.
            _wait([h for h in handles if h.is_tracker], _KILL_SECONDS)
    if left := family(owned.marker):
        raise Unavailable(
            f"{owned.name}: process(es) {left} did not end after SIGKILL (stuck in the kernel?); "
            f"look at them with `ps -o pid,stat,wchan,cmd -p {','.join(map(str, left))}`"
        )
    return ended


class Ledger:
    """The file that says which processes are ours. One entry a name; safe across processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[Owned]:
        """Every entry. Raises `BadInput` for a file that is not a ledger."""
        if not self.path.exists():
            return []
        value = read_json(self.path)
        if not isinstance(value, dict) or value.get("schema") != _LEDGER_SCHEMA:
            raise BadInput(f"{self.path}: not a ledger of schema {_LEDGER_SCHEMA}")
        return [_entry(raw, f"{self.path}: processes[{i}]") for i, raw in _numbered(value)]

    def get(self, name: str) -> Owned | None:
        """The entry of that name."""
        return next((e for e in self.entries() if e.name == name), None)

    def record(self, owned: Owned) -> None:
        """Write an entry, in place of the one of the same name."""
        with self._locked():
            others = [e for e in self.entries() if e.name != owned.name]
            self._write([*others, owned])

    def forget(self, name: str) -> None:
        """Remove the entry of that name, if there is one."""
        with self._locked():
            self._write([e for e in self.entries() if e.name != name])

    def launch(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        info: Mapping[str, Any],
    ) -> Owned:
        """Start `command` in a session of its own and write it down.

        The marker is in the ledger before the process exists, so that one started just before a
        crash is found again. Output goes to the end of `log`; input is empty; `env` is the whole
        environment but for the marker.
        """
        marker = f"{name}-{secrets.token_hex(8)}"
        owned = Owned(
            name=name,
            marker=marker,
            pid=None,
            start_time=None,
            boot_id=boot_id(),
            command=tuple(command),
            log=str(log),
            started_at=time.time(),
            info=dict(info),
        )
        self.record(owned)
        pid = _spawn(command, {**env, MARKER_VARIABLE: marker}, cwd, log)
        owned = replace(owned, pid=pid, start_time=start_time(pid))
        self.record(owned)
        return owned

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.path.with_suffix(".lock"), "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    def _write(self, entries: Sequence[Owned]) -> None:
        write_json(self.path, {"schema": _LEDGER_SCHEMA, "processes": [asdict(e) for e in entries]})


def _numbered(value: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    processes = value.get("processes")
    return enumerate(processes if isinstance(processes, list) else [])


def _entry(raw: Any, where: str) -> Owned:
    known = {f.name for f in fields(Owned)}
    if not isinstance(raw, dict) or set(raw) != known:
        raise BadInput(f"{where}: keys must be {', '.join(sorted(known))}")
    return Owned(**{**raw, "command": tuple(raw["command"])})


def _spawn(command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        child = subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    return child.pid
