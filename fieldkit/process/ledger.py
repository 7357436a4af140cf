"""The file that says which processes are ours: one entry each, written before the process starts.

It outlives the programs that write it, so that the next one finds what a killed one left. It names
processes; recognising and ending them is `fieldkit.process.owned`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import locked, read_json, write_json
from fieldkit.process.owned import (
    KEPT_VARIABLE,
    LEDGER_VARIABLE,
    MARKER_VARIABLE,
    Owned,
    is_running,
    left_behind,
    own_marks,
    reap_later,
    start_time,
)

LEDGER_FILE = "ledger.json"
"""Its name in the folder of what starts processes."""

_LEDGER_SCHEMA = 1


class Ledger:
    """One ledger file. One entry a name; safe across processes.

    >>> import os, tempfile
    >>> from pathlib import Path
    >>> from fieldkit.process import is_running, terminate
    >>> folder = Path(tempfile.mkdtemp())
    >>> server = Ledger(folder / "ledger.json").launch(
    ...     "server", ["sleep", "60"], env=os.environ, cwd=folder, log=folder / "log", info={}
    ... )
    >>> found = Ledger(folder / "ledger.json").get("server")  # a later program, after a crash
    >>> is_running(found), terminate(found, grace_seconds=5) == [server.pid], is_running(found)
    (True, True, False)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def entries(self) -> list[Owned]:
        """Every entry. Raises `BadInput` for a file that is not a ledger."""
        if not self.path.exists():
            return []
        value = read_json(self.path)
        if not isinstance(value, dict) or value.get("schema") != _LEDGER_SCHEMA:
            raise BadInput(f"{self.path}: not a ledger of schema {_LEDGER_SCHEMA}")
        entries = value.get("processes", [])
        if not isinstance(entries, list):
            raise BadInput(f"{self.path}: processes must be a list")
        return [_entry(raw, f"{self.path}: processes[{i}]") for i, raw in enumerate(entries)]

    def get(self, name: str) -> Owned | None:
        """The entry of that name."""
        return next((e for e in self.entries() if e.name == name), None)

    def record(self, owned: Owned) -> None:
        """Write an entry, in place of the one of the same name."""
        with self._locked():
            self._put(owned)

    def forget(self, entry: str | Owned) -> None:
        """Remove the entry of that name, or this very one and not that of a process which has its
        name since; if there is one."""
        with self._locked():
            if isinstance(entry, Owned):
                self._remove(entry.marker)
            else:
                self._write([e for e in self.entries() if e.name != entry])

    def announce(
        self,
        name: str,
        command: Sequence[str | os.PathLike[str]],
        log: str | Path,
        info: Mapping[str, Any] | None = None,
    ) -> Owned:
        """Write down what is about to be started, under a new marker.

        The marker is in the ledger before the process exists, so that one started just before a
        crash is found again. Start it with `marks` in its environment, then call `started`.
        """
        owned = _new_entry(name, command, log, info or {})
        self.record(owned)
        return owned

    def marks(self, owned: Owned) -> dict[str, str]:
        """The environment variables by which its process, and all it starts, will be known."""
        return self._marks(owned.marker)

    def unannounced(self, name: str) -> dict[str, str]:
        """Marks for a process that enters itself into the ledger with `enrolled`.

        Until then another process may have the name, and keeps its entry where this one gives up.
        """
        return self._marks(_new_marker(name))

    @contextlib.contextmanager
    def enrolled(self, name: str) -> Iterator[None]:
        """Keep this process in the ledger as `name` if it was started with `unannounced` marks."""
        marker = own_marks().get(MARKER_VARIABLE, "")
        if not marker.startswith(f"{name}-") or own_marks() != self._marks(marker):
            yield
            return
        own = Owned(name, marker, parent=os.getppid(), command=tuple(sys.orig_argv))
        self.started(own, os.getpid())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # an entry of what has ended does no harm
                self.forget(own)

    def _marks(self, marker: str) -> dict[str, str]:
        ledger = str(self.path.absolute())
        return {MARKER_VARIABLE: marker, LEDGER_VARIABLE: ledger, KEPT_VARIABLE: "1"}

    def started(self, owned: Owned, pid: int) -> Owned:
        """Write down the pid of what was announced."""
        owned = _with_pid(owned, pid)
        self.record(owned)
        return owned

    def launch(
        self,
        name: str,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str],
        cwd: str | Path,
        log: str | Path,
        info: Mapping[str, Any],
        pass_fds: Sequence[int] = (),
    ) -> Owned:
        """Start `command` in a session of its own and write it down.

        Output goes to the end of `log`; input is empty; `env` is the whole environment but for the
        marks. It inherits the file descriptors `pass_fds`, such as a socket to listen at. Raises
        `BadInput` for an empty command and while a process of that name, or what it left, runs, and
        `OSError` for a command that cannot be started, which leaves no entry. Where the disk was
        full when its pid was to be written, it runs, and `terminate` of its entry ends it.
        """
        if not command:
            raise BadInput(f"{self.path}: {name}: the command is empty")
        owned = _new_entry(name, command, log, info)
        with self._locked():  # until the pid is there, by which another caller is refused
            self._refuse_running(name)
            self._put(owned)
            try:
                child = spawn(command, {**env, **self.marks(owned)}, log, cwd, pass_fds)
            except BaseException:
                self._remove(owned.marker)
                raise
            reap_later(child)
            owned = _with_pid(owned, child.pid)
            self._put(owned)
        return owned

    def _locked(self) -> AbstractContextManager[object]:
        return locked(self.path.with_suffix(".lock"))

    def _refuse_running(self, name: str) -> None:
        found = self.get(name)
        if found is None or not found.marker:
            return
        alive = [found.pid] if is_running(found) else left_behind(found)
        if alive:
            raise BadInput(
                f"{self.path}: {name} runs already, as pid {', '.join(map(str, alive))}; end it "
                "first, with fieldkit.process.terminate, or take another name"
            )

    def _remove(self, marker: str) -> None:
        self._write([e for e in self.entries() if e.marker != marker])

    def _put(self, owned: Owned) -> None:
        self._write([*(e for e in self.entries() if e.name != owned.name), owned])

    def _write(self, entries: Sequence[Owned]) -> None:
        write_json(self.path, {"schema": _LEDGER_SCHEMA, "processes": [asdict(e) for e in entries]})


def _new_entry(
    name: str, command: Sequence[str | os.PathLike[str]], log: str | Path, info: Mapping[str, Any]
) -> Owned:
    return Owned(
        name=name,
        marker=_new_marker(name),
        parent=os.getpid(),
        command=tuple(os.fspath(word) for word in command),
        log=str(log),
        info=dict(info),
    )


def _with_pid(owned: Owned, pid: int) -> Owned:
    return replace(owned, pid=pid, start_time=start_time(pid))


def _new_marker(name: str) -> str:
    return f"{name}-{secrets.token_hex(8)}"


_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "a text"),
    "marker": (str, "a text"),
    "pid": ((int, NoneType), "a whole number or null"),
    "start_time": ((int, NoneType), "a whole number or null"),
    "boot_id": (str, "a text"),
    "parent": ((int, NoneType), "a whole number or null"),
    "command": (list, "a list"),
    "log": (str, "a text"),
    "started_at": ((int, float), "a number"),
    "info": (dict, "an object"),
}


def _entry(raw: Any, where: str) -> Owned:
    known = {f.name for f in fields(Owned)}
    if isinstance(raw, dict):
        raw = {"parent": None, **raw}  # the first ledgers have no parent
    if not isinstance(raw, dict) or set(raw) != known:
        raise BadInput(f"{where}: keys must be {', '.join(sorted(known))}")
    for key, (kind, meaning) in _KINDS.items():
        if not isinstance(raw[key], kind) or isinstance(raw[key], bool):
            raise BadInput(f"{where}: {key} must be {meaning}")
    if not raw["marker"]:  # processes without a mark would be taken for its own
        raise BadInput(f"{where}: marker is empty")
    return Owned(**{**raw, "command": tuple(raw["command"])})


def spawn(
    command: Sequence[str | os.PathLike[str]],
    env: Mapping[str, str],
    log: str | Path,
    cwd: str | Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, with `env` alone and its output at `log`'s end. Of
    open file descriptors it inherits `pass_fds`."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        return subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
