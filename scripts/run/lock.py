"""One loop per run: an flock that ends with its holder, and a file that names the holder.

The kernel lock decides, so a crash can never leave a run locked; the text in the file (pid, start
time, boot, host) only names the holder to a person, and is removed when the holder lets go. A phase
that a loop starts inherits the open lock instead of taking its own, so that the run stays locked
until the last of them is gone. As a program (`python -m scripts.run.lock RUN COMMAND...`) it
becomes COMMAND with the lock in hand: that is how grpo_loop.sh has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from fieldkit.errors import BadInput, FieldkitError, NotOwner, foreseen
from fieldkit.files.atomic import take_lock
from fieldkit.files.json_text import parse_json
from fieldkit.process.owned import boot_id, start_time

LOOP = "loop"
"""The name of `grpo run`, which holds the lock, in the ledger and on the display."""

LOCK_FD_VARIABLE = "GRPO_LOCK_FD"
"""Environment variable by which a child finds the inherited lock."""

_PATIENCE_SECONDS = 60.0
"""How long a new loop waits for the phase of a killed one. It ends within moments, but for one that
has a server to end, which may take engine.stop_seconds (20), and on a busy machine longer."""
_SILENT_SECONDS = 2.0  # after which it says what it waits for


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[int]:
    """Hold the run's lock; yield the descriptor that children must inherit.

    Raises `NotOwner` naming pid and host where another process holds it. Within a phase that a loop
    started, uses the inherited lock, which stays with the parent.
    """
    if (parents := inherited(path)) is not None:
        yield parents
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(fd, path)
        try:
            # The name is a courtesy. On a full disk there is no room for it, and what makes room
            # has to begin all the same.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(_identity()).encode() + b"\n", 0)
            yield fd
        finally:
            # The process may live on, as a sweep does with its next night. Still under the lock,
            # so the next holder has not written its name yet.
            with contextlib.suppress(OSError):  # as on a disk that became read-only
                os.ftruncate(fd, 0)
    finally:
        os.close(fd)


@contextlib.contextmanager
def only_here(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock of a command that is no loop. busy: what another such command does, for the
    `NotOwner` that names it."""
    if (pid := holder(path)) is not None and is_held(path):
        raise NotOwner(f"{busy}: `kill {pid}` ends it")
    with run_lock(path):
        yield


def holder(path: Path) -> int | None:
    """Pid of the live process on this host that took the lock, according to the file.

    Does not touch the lock itself, so no other process has to wait.
    """
    said = _read(path)
    pid = said.get("pid")
    if not isinstance(pid, int) or said.get("host") != socket.gethostname() or _is_gone(said):
        return None
    return pid


def is_held(path: Path) -> bool:
    """Whether a loop, or a process that it started, holds the lock now. Asks the kernel."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _take(fd: int, path: Path) -> None:
    told = False

    def waiting(seconds: float) -> None:
        nonlocal told
        said = _read(path)
        # A holder without a name has just taken the lock, or is what a loop leaves behind.
        is_brief = "pid" not in said or _is_gone(said)
        if not is_brief or seconds >= _PATIENCE_SECONDS:
            raise NotOwner(_refusal(path))
        if seconds >= _SILENT_SECONDS and not told:
            told = True
            what = f"a phase that an earlier loop of {path.parent.name} left to end"
            print(f"waiting, {_PATIENCE_SECONDS:.0f} s at most, for {what}", file=sys.stderr)

    take_lock(fd, waiting)


def _identity() -> dict[str, int | str | None]:
    pid = os.getpid()
    return {
        "pid": pid,
        "start_time": start_time(pid),
        "boot_id": boot_id(),
        "host": socket.gethostname(),
    }


def _read(path: Path) -> dict[str, object]:
    try:
        value = parse_json(path.read_bytes() or b"{}", str(path))
    except (OSError, BadInput):
        return {}
    return value if isinstance(value, dict) else {}


def _is_gone(holder: dict[str, object]) -> bool:
    """Whether the process that took the lock has ended (a child of it may still hold it)."""
    pid = holder.get("pid")
    if not isinstance(pid, int) or holder.get("host") != socket.gethostname():
        return False
    return holder.get("boot_id") != boot_id() or start_time(pid) != holder.get("start_time")


def _refusal(path: Path) -> str:
    holder = _read(path)
    run = path.parent.name
    if "pid" not in holder or _is_gone(holder):
        who = f" (pid {holder['pid']} on {holder.get('host')})" if "pid" in holder else ""
        return (
            f"{path}: the loop that held run {run}{who} is gone, but a phase it started is "
            f"still ending; `fuser {shlex.quote(str(path))}` names it; run the same command again "
            "when it has ended"
        )
    return (
        f"{path}: another loop owns run {run}: pid {holder['pid']} on"
        f" {holder.get('host', 'an unknown host')}; wait for it, or stop it with"
        f" `kill {holder['pid']}` (it can be resumed)"
    )


def inherited(path: Path) -> int | None:
    """The descriptor of the parent's lock, if it is this run's; else None."""
    given = os.environ.get(LOCK_FD_VARIABLE, "")
    if not given.isdigit():
        return None
    try:
        mine, theirs = os.fstat(int(given)), path.stat()
    except OSError:
        return None
    same = (mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino)
    return int(given) if same else None


def become(run: str, command: Sequence[str]) -> NoReturn:
    """Replace this process with `command`, which keeps the pid and holds RUN's lock.

    Raises `BadInput` if there is no such run, `NotOwner` if another process holds the lock.
    """
    from scripts.run.folder import open_run

    with run_lock(open_run(run).lock) as fd:
        os.set_inheritable(fd, True)
        os.environ[LOCK_FD_VARIABLE] = str(fd)
        os.execvp(command[0], list(command))


if __name__ == "__main__":
    try:
        become(sys.argv[1], sys.argv[2:])
    except (FieldkitError, OSError) as e:
        if (known := foreseen(e)) is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        raise SystemExit(known.exit_code) from None
