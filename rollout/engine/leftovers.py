"""What a killed server leaves behind: a scratch folder, shared memory, and memory still held.

A server that ends in good order removes its shared memory. One whose processes were all killed at
once does not, and afterwards nothing of it can be measured. So its belongings are noted while it
lives. Nothing is removed that is not provably the server's.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.gate.memory import Reclaim
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import Owned, boot_id, environment, since_boot, terminate
from fieldkit.process.shared_memory import remove_shared, shared_files

BESIDE = "beside"
"""In the ledger's notes on a process: the name of the server with which it ends."""

OUTLIVES = "outlives"
"""In the same notes, where it outlives a server that is only replaced by another: it works while
the server plays, or holds no model yet."""

SCRATCH_VARIABLE = "TMPDIR"
"""The environment variable with the scratch folder of a server and its children."""

_ROOM = Path("/tmp")  # short, because sockets are below it
_PREFIX = "grpo-"
_NOTE_SECONDS = 3600.0  # how long a note of what a server held is of use; steps are shorter


def new_scratch() -> Path:
    """A private folder for a server's sockets and files."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_ROOM))


@dataclass(frozen=True)
class Leftovers:
    """What may outlive a server. shared: as `shared_files` returns it."""

    scratch: frozenset[Path]
    shared: Mapping[str, int]

    @classmethod
    def of(cls, pids: Iterable[int], info: Mapping[str, Any]) -> Leftovers:
        """From a server's living processes, and from the ledger's notes on the others."""
        living = list(pids)
        folders = [info.get("scratch"), *(environment(p).get(SCRATCH_VARIABLE) for p in living)]
        return cls(
            scratch=frozenset(Path(f) for f in folders if f),
            shared={**info.get("shared", {}), **shared_files(living)},
        )

    def remove(self) -> None:
        """Remove what is left. Call it when no process of the server lives."""
        for folder in self.scratch:
            if _is_scratch(folder):
                shutil.rmtree(folder, ignore_errors=True)
        remove_shared(self.shared)


def _is_scratch(folder: Path) -> bool:
    """Whether only `new_scratch` can have made it: its name, its place, and this user's alone."""
    if folder.parent != _ROOM or not folder.name.startswith(_PREFIX):
        return False
    with contextlib.suppress(OSError):
        status = folder.lstat()
        private = stat.S_IMODE(status.st_mode) == stat.S_IRWXU
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and private
    return False


def end_with_leftovers(ledger: Ledger, owned: Owned, grace_seconds: float) -> int:
    """End a process and its children, remove its scratch folder and its entry.

    Returns the number of processes. Raises `Unavailable` for one that survives SIGKILL.
    """
    ended = terminate(owned, grace_seconds)
    Leftovers.of((), owned.info).remove()
    forget_ended(ledger, owned)
    return len(ended)


def forget_ended(ledger: Ledger, owned: Owned) -> None:
    """Remove the entry of what has ended, which does no harm where a full disk keeps it."""
    with contextlib.suppress(OSError):
        ledger.forget(owned)


def end_beside(ledger: Ledger, name: str, grace_seconds: float, *, at_end: bool) -> None:
    """End every process that stays beside this server (`BESIDE`), as `end_with_leftovers` does.

    at_end: no other server follows; those that outlive one are ended too.
    """
    for other in ledger.entries():
        if other.info.get(BESIDE) == name and (at_end or not other.info.get(OUTLIVES)):
            end_with_leftovers(ledger, other, grace_seconds)


def held_note(pids: Iterable[int]) -> dict[str, Any]:
    """The memory that a server's processes hold now, for the ledger."""
    return {"at": since_boot(), **Reclaim.measure(pids).plain()}


def to_come_back(owned: Owned, pids: Iterable[int], margin: int) -> Reclaim:
    """The memory that the end of a server has to give back. pids: its living processes.

    What processes held that were killed earlier cannot be measured, so the ledger's note counts
    where it is more by the margin. It was taken when the server was ready or had last loaded an
    adapter: before the start the files that it reads are not yet in the page cache, which a
    container's limit counts as taken. A note of another boot, or an old one, does not count.
    """
    now = Reclaim.measure(pids)
    note = dict(owned.info.get("held", {}))
    age = since_boot() - note.pop("at", -math.inf)
    if owned.boot_id != boot_id() or age > _NOTE_SECONDS:
        return now
    then = Reclaim.read(note)
    return replace(then, pids=now.pids) if then.all_held > now.all_held + margin else now
