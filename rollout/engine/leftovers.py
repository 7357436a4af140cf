"""What a server leaves when it is killed: a scratch folder, shared memory, memory that must return.

A server that ends in good order removes its shared memory; where all of its processes were killed
at once, nobody is left to, and nothing of it can be measured any more. So what is its own is noted
while it lives. What is not provably the server's is left alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.gate.memory import Reclaim
from fieldkit.process.owned import Owned, boot_id, environment
from fieldkit.process.shared_memory import remove_shared, shared_files

SCRATCH_VARIABLE = "TMPDIR"
"""By which a server, and all that it starts, knows its scratch folder."""

_ROOM = Path("/tmp")  # short, because sockets are below it
_PREFIX = "grpo-"
_NOTE_SECONDS = (
    3600.0  # within which what there was before holds but for a margin; steps are shorter
)


def new_scratch() -> Path:
    """A private folder for a server's sockets and files."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_ROOM))


@dataclass(frozen=True)
class Leftovers:
    """What is a server's and may outlive it. shared: as `shared_files` gives it."""

    scratch: frozenset[Path]
    shared: Mapping[str, int]

    @classmethod
    def of(cls, pids: Iterable[int], info: Mapping[str, Any]) -> Leftovers:
        """Of a server's living processes, and of what the ledger noted about the others."""
        living = list(pids)
        folders = [info.get("scratch"), *(environment(p).get(SCRATCH_VARIABLE) for p in living)]
        return cls(
            scratch=frozenset(Path(f) for f in folders if f),
            shared={**info.get("shared", {}), **shared_files(living)},
        )

    def remove(self) -> None:
        """Remove what is left, once no process of the server lives."""
        for folder in self.scratch:
            if _is_scratch(folder):
                shutil.rmtree(folder, ignore_errors=True)
        remove_shared(self.shared)


def _is_scratch(folder: Path) -> bool:
    """Whether it can only be one of `new_scratch`'s: its name, its place, and this user's alone."""
    if folder.parent != _ROOM or not folder.name.startswith(_PREFIX):
        return False
    with contextlib.suppress(OSError):
        status = folder.lstat()
        private = stat.S_IMODE(status.st_mode) == stat.S_IRWXU
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and private
    return False


def held_note(pids: Iterable[int]) -> dict[str, Any]:
    """What the processes of a server hold now, for the ledger."""
    return {"at": time.clock_gettime(time.CLOCK_BOOTTIME), **Reclaim.measure(pids).plain()}


def to_come_back(owned: Owned, pids: Iterable[int], margin: int) -> Reclaim:
    """What the end of a server has to give back. pids: its processes that live.

    Of those that were killed before us nothing can be measured any more, so what the ledger noted
    counts where it is more by the margin. It was noted when the server was ready or had last loaded
    an adapter, and not before the start: by then the files that it reads are in the page cache,
    which a container's limit counts as taken. An old note says nothing about this machine now.
    """
    now = Reclaim.measure(pids)
    note = dict(owned.info.get("held", {}))
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - note.pop("at", -math.inf)
    if owned.boot_id != boot_id() or age > _NOTE_SECONDS:
        return now
    then = Reclaim.read(note)
    return replace(then, pids=now.pids) if then.all_held > now.all_held + margin else now
