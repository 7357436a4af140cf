"""The processes of one run and the machine's memory, for `grpo watch`.

Processes are found by the marks in their environment. Their memory is read cheaply: an exact sum
over a process's pages would lock its memory map meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import psutil

from fieldkit.errors import BadInput
from fieldkit.gate import memory
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import marked
from scripts.run.folder import RunFolder
from scripts.run.lock import LOOP


@dataclass(frozen=True)
class Program:
    """A family of processes. held: bytes that only their end frees, including GPU memory.

    cpu: cores in use since the previous look; None at the first look.
    """

    name: str
    pids: tuple[int, ...]
    held: int
    cpu: float | None


@dataclass(frozen=True)
class Memory:
    """Available and total bytes of host and GPU. gpu_total: None without separate GPU memory."""

    available: memory.Available
    host_total: int
    gpu_total: int | None


def read_memory() -> Memory:
    """Read the machine's memory."""
    return Memory(memory.available(), memory.total_host(), memory.gpu_total())


class Programs:
    """A run's programs. CPU use is measured between two looks, so state is kept between them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._known: dict[int, psutil.Process] = {}

    def look(self, loop: int | None, loop_name: str = LOOP) -> tuple[Program, ...]:
        """The programs alive now. loop: pid of the lock's holder, which may lack a mark."""
        families: dict[str, list[int]] = defaultdict(list)
        if loop is not None:
            families[loop_name].append(loop)
        names = self._names()
        for process in marked():
            if process.ledger == self._folder.ledger and process.pid != loop:
                name = names.get(process.marker, process.marker.rpartition("-")[0])
                families[name].append(process.pid)
        seen = dict(self._known)
        self._known = {}
        return tuple(self._program(name, pids, seen) for name, pids in families.items())

    def _names(self) -> dict[str, str]:
        """Marker → name. Empty for a ledger of another version: then markers serve as names."""
        try:
            return {e.marker: e.name for e in Ledger(self._folder.ledger).entries()}
        except BadInput:
            return {}

    def _program(self, name: str, pids: list[int], seen: dict[int, psutil.Process]) -> Program:
        held, cores, measured = 0, 0.0, False
        for pid in pids:
            try:
                process = seen.get(pid) or psutil.Process(pid)
                with process.oneshot():
                    info = process.memory_info()
                    percent = process.cpu_percent()  # since the last call on the same object
            except psutil.Error:
                continue  # it has just ended
            self._known[pid] = process
            held += info.rss - info.shared
            cores += percent / 100
            measured = measured or pid in seen
        held += memory.gpu_held_by(pids)
        return Program(name, tuple(pids), held, cores if measured else None)
