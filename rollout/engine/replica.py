"""Which of a run's own servers one is: its name in the ledger, and its part of the machine.

The only server of a run has the whole machine and the name that it always had. Several divide the
processors, or the GPUs. Nothing here starts a server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned

ENGINE = "engine"
"""The name of the first one's entry in the ledger; the others are engine-2, engine-3, …"""

_NAME = re.compile(rf"{ENGINE}(?:-(\d+))?")


@dataclass(frozen=True)
class Replica:
    """Server number `index`, counted from 0, `of` so many."""

    index: int = 0
    of: int = 1

    @classmethod
    def named(cls, name: str) -> Replica:
        """The one with this name in a ledger. Of how many is not known."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name!r} is not the name of an engine")
        index = int(found[1] or 1) - 1
        return cls(index, index + 1)

    @property
    def name(self) -> str:
        return ENGINE if self.index == 0 else f"{ENGINE}-{self.index + 1}"

    @property
    def told(self) -> str:
        """It in words, at the beginning of a line of progress."""
        return ENGINE if self.of == 1 else f"{ENGINE} {self.index + 1}"

    @property
    def note(self) -> dict[str, Any]:
        """What the ledger keeps of its part of the machine; nothing for the only server."""
        return {} if self.of == 1 else {"replica": [self.index, self.of]}

    def cpus(self, machine: Sequence[int], ranks: int) -> str:
        """VLLM_CPU_OMP_THREADS_BIND: the processors of each of its ranks, separated by "|".

        machine: all that may be used. Servers and ranks get equal parts of them in order, because
        neighbours share caches; where there are too few, several share one.
        """
        parts = self.of * ranks
        first = self.index * ranks
        return "|".join(
            ",".join(map(str, _part(machine, i, parts))) for i in range(first, first + ranks)
        )

    def gpus(self, machine: Sequence[str], ranks: int) -> str:
        """CUDA_VISIBLE_DEVICES: one GPU for each of its ranks. Servers share them where there are
        too few. machine: the names of all that may be used."""
        places = max(1, len(machine) // ranks)
        first = self.index % places * ranks
        return ",".join(machine[first : first + ranks])


ONLY = Replica()
"""That of a run with one server."""


def _part(of: Sequence[int], index: int, parts: int) -> Sequence[int]:
    """Part number `index` of `parts` equal ones, none of them empty."""
    if len(of) < parts:
        return (of[index % len(of)],)
    return of[index * len(of) // parts : (index + 1) * len(of) // parts]


def is_engine(name: str) -> bool:
    """Whether an entry of this name in a ledger is a server's."""
    return _NAME.fullmatch(name) is not None


def entries_of(run_dir: Path) -> list[Owned]:
    """The entries of servers in the run's ledger."""
    return [e for e in Ledger(run_dir / LEDGER_FILE).entries() if is_engine(e.name)]
