"""The live processes that runs have started: their run, the memory they hold, and their user.

They are found by the marks in their environment, so it does not matter which of them were killed,
what their names are, or whether the run folder still exists. Listing sends no signal; `reclaim`
ends processes that no loop uses and no other checkout owns.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from fieldkit.errors import FieldkitError, foreseen
from fieldkit.gate import memory
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import (
    Marked,
    Owned,
    is_running,
    marked,
    terminate,
)
from rollout.engine.leftovers import Leftovers, forget_ended
from rollout.engine.replica import is_engine
from rollout.engine.serve import served_names, stop_engine
from scripts.base.checkout import ROOT
from scripts.run.folder import RunFolder
from scripts.run.lock import LOOP, is_held

GRACE_SECONDS = 10.0
"""How long an unused process may take to end after SIGTERM."""


class Use(StrEnum):
    """Who uses a process now."""

    LOOP = "a loop uses it"
    NOBODY = "no loop uses it"
    STARTING = "it is starting, or has just ended its run"
    """A detached loop, which is in the ledger only while it holds the run's lock."""
    LOST = "no ledger names it"
    """Its run folder was deleted, or the ledger has another entry in its place."""
    ELSEWHERE = "no loop uses it, and it belongs to another checkout"
    UNKNOWN = "its ledger cannot be read"


@dataclass(frozen=True)
class Family:
    """The live processes with one marker.

    pids: in ascending order. entry: the ledger's; None if no ledger names them. held: bytes of host
    and GPU memory that their end would free. trouble: the error of reading the ledger; empty if
    there is none.
    """

    run: RunFolder
    pids: tuple[int, ...]
    marker: str
    entry: Owned | None
    use: Use
    held: int
    trouble: str = ""

    @property
    def name(self) -> str:
        """Its kind: engine, trainer, or the name of its phase."""
        return self.entry.name if self.entry else self.marker.rpartition("-")[0]

    @property
    def reclaimable(self) -> bool:
        return self.use in (Use.NOBODY, Use.LOST)

    @property
    def has_endpoint(self) -> bool:
        """Whether it is an engine whose address is in the ledger."""
        return is_engine(self.name) and self.entry is not None

    @property
    def is_starting(self) -> bool:
        """Whether it is an engine that is loading and has not answered yet."""
        return (
            self.entry is not None
            and self.has_endpoint
            and "lifecycle" not in self.entry.info  # set with its first answer
            and is_running(self.entry)
        )

    @cached_property
    def served(self) -> list[str] | None:
        """The names that an engine serves; None if it does not answer within seconds."""
        return None if self.entry is None else served_names(self.entry)

    @property
    def is_silent(self) -> bool:
        """Whether it is an engine that should answer and does not."""
        return self.has_endpoint and not self.is_starting and self.served is None


def families() -> list[Family]:
    """Every family of this user, by run; includes families whose ledger cannot be read."""
    found: dict[tuple[Path, str], list[Marked]] = defaultdict(list)
    for process in marked():
        found[process.ledger, process.marker].append(process)
    return [
        _family(ledger, marker, tuple(p.pid for p in members))
        for (ledger, marker), members in sorted(found.items())
    ]


def _family(ledger: Path, marker: str, pids: tuple[int, ...]) -> Family:
    run = RunFolder(ledger.parent)
    held = sum(memory.held_by(pid) for pid in pids) + memory.gpu_held_by(pids)
    try:
        entry = next((e for e in Ledger(ledger).entries() if e.marker == marker), None)
    except (FieldkitError, OSError) as e:
        return Family(run, pids, marker, None, Use.UNKNOWN, held, str(e))
    return Family(run, pids, marker, entry, _use(run, marker, entry), held)


def _use(run: RunFolder, marker: str, entry: Owned | None) -> Use:
    is_there = run.path.is_dir()
    if entry is None and is_there and marker.startswith(f"{LOOP}-"):
        return Use.STARTING
    is_ours = run.path.is_relative_to(ROOT) or not is_there
    if entry is None and is_ours:
        return Use.LOST
    if is_held(run.lock):
        return Use.LOOP
    return Use.NOBODY if is_ours else Use.ELSEWHERE


def told(family: Family) -> str:
    """A family in one line, without a remedy."""
    pids = f"pid {family.pids[0]}" + (f" and {n} more" if (n := len(family.pids) - 1) else "")
    parts = [f"{family.name} of run {family.run.typed}, {pids}"]
    if family.entry is not None:
        since = time.strftime("%a %H:%M", time.localtime(family.entry.started_at))
        parts.append(f"since {since}")
    parts.append(f"{family.held / memory.GIB:.1f} GiB")
    if family.has_endpoint:
        parts.append(_endpoint(family))
    return ", ".join([*parts, family.use.value])


def _endpoint(family: Family) -> str:
    if family.is_starting:
        return "is starting"
    names = family.served
    return "does not answer" if names is None else f"serves {', '.join(sorted(names))}"


def reclaim() -> list[str]:
    """End every family that is reclaimable; one line for each.

    A family that cannot be ended does not stop the others. Raises at the end: `Unavailable` for a
    process that survives SIGKILL, `Shortage` if an engine's memory does not come back.
    """
    lines: list[str] = []
    failed: list[FieldkitError] = []
    for family in families():
        if family.reclaimable:
            try:
                _end(family)
            except (FieldkitError, OSError) as e:  # a full disk may hold up one
                known = foreseen(e)
                if known is None:
                    raise
                failed.append(known)
            else:
                lines.append(f"ended {told_briefly(family)}")
    if failed:
        raise type(failed[0])("\n".join([*lines, *map(str, failed)]))
    return lines


def told_briefly(family: Family) -> str:
    """A family's description for the line about its end."""
    n = len(family.pids)
    return (
        f"{family.name} of run {family.run.typed}: {n} process{'es' if n > 1 else ''}, "
        f"{family.held / memory.GIB:.1f} GiB"
    )


def _end(family: Family) -> None:
    if family.has_endpoint:
        stop_engine(family.run.path)
        return
    # Only an engine's scratch folder is read from its processes; others have the folder of the
    # process that started them.
    pids = family.pids if is_engine(family.name) else ()
    leftovers = Leftovers.of(pids, family.entry.info if family.entry else {})
    # Of processes that no ledger names only the marker is known, which is enough.
    terminate(family.entry or Owned(family.name, family.marker), GRACE_SECONDS)
    leftovers.remove()
    if family.entry is not None:
        forget_ended(Ledger(family.run.ledger), family.entry)
