"""The night's wall time, in parts that a person can influence.

The phases measure a dozen small segments in timings.json; this module groups them by the parts of
the lifecycle (rollout, reclaim, train, load, restart, eval). Time in no segment is a part of its
own, so the parts add up to the wall time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fieldkit.files.journal import Entry
from rollout.engine.lifecycle import NEEDS, RESTART
from scripts.run.state import PAUSE, SERVERS
from scripts.run.timings import BETWEEN, StepTimings
from scripts.words.quantities import duration

PARTS: dict[str, tuple[str, ...]] = {
    "rollout": ("rollout",),
    "eval": ("eval",),
    "train": ("reference", "gradient", "canary", "save", "trainer_other"),
    "load the trainer": ("trainer_start", "trainer_load"),
    "start or swap the server": ("engine",),
    "reclaim memory": ("reclaim",),
    "preflight": ("preflight",),
    "start Python": ("startup",),
    "between phases": (BETWEEN,),
}
"""Part of the waterfall → the segments that it groups."""

MUCH = 0.5
"""Evaluations that take at least this share of the wall time are mentioned."""

OTHER = "other"
UNCLAIMED = "claimed by no part"


@dataclass(frozen=True)
class Part:
    """One bar of the waterfall. share: of the wall time, in [0, 1]."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class WallTime:
    """The whole night. parts: add up to `wall`; longest first, unclaimed last."""

    wall: float
    training: float
    """Seconds of rollout and training, over all steps."""
    evals: float
    n_steps: int
    parts: tuple[Part, ...]
    sentences: tuple[str, ...]


def wall_time(
    timings: Sequence[StepTimings],
    journal: Sequence[Entry],
    in_flight: int,
    seats: int,
    eval_every: int = 0,
) -> WallTime | None:
    """Add up the steps; None if nothing was measured.

    in_flight: episodes of a step, B·K. seats: most episodes played at once. eval_every: steps
    between evaluations; 0: only at the start and the end.
    """
    clocked = [t for t in timings if t.segments]
    wall = sum(t.wall for t in clocked)
    if not wall:
        return None
    parts = parts_of(clocked, wall)
    later = [t for t in clocked if t.step > 0]
    return WallTime(
        wall=wall,
        training=sum(t.training_wall for t in later),
        evals=sum(t.eval_wall for t in clocked),
        n_steps=len(later),
        parts=parts,
        sentences=(
            _lifecycle_sentence(parts, clocked, journal),
            _concurrency_sentence(in_flight, seats),
            *_pause_sentence(journal),
            *_servers_sentence(journal),
            *_eval_sentence(sum(t.eval_wall for t in clocked), wall, eval_every),
        ),
    )


def parts_of(clocked: Sequence[StepTimings], wall: float) -> tuple[Part, ...]:
    """All seconds of these steps by part, the longest first, and what no part claims of `wall`."""
    seconds: dict[str, float] = {}
    for t in clocked:
        for name, value in t.seconds_of_wall.items():
            part = next((p for p, names in PARTS.items() if name in names), OTHER)
            seconds[part] = seconds.get(part, 0.0) + value
    longest_first = sorted(seconds, key=lambda p: (p == OTHER, -seconds[p]))
    found = [Part(p, seconds[p], seconds[p] / wall) for p in longest_first]
    rest = max(0.0, wall - sum(seconds.values()))
    return (*found, Part(UNCLAIMED, rest, rest / wall))


def _lifecycle_sentence(
    parts: Sequence[Part], clocked: Sequence[StepTimings], journal: Sequence[Entry]
) -> str:
    """The time that the other lifecycle would have saved, as far as it was measured."""
    served = [e.data for e in journal if e.event == "adapter_served"]
    if not served:
        return "The journal does not tell how adapters were served."
    engine = sum(t.seconds.get("engine", 0.0) for t in clocked if t.step > 0)
    reclaim = next((p.seconds for p in parts if p.name == "reclaim memory"), 0.0)
    wall = sum(t.wall for t in clocked)
    if served[-1].get("lifecycle") == RESTART.name:
        told = (
            f"The server was restarted for every adapter: {duration(engine + reclaim)}"
            f" ({100 * (engine + reclaim) / wall:.0f} % of the night) went into that"
        )
        if NEEDS in served[-1].get("reason", ""):
            return f"{told}, because the memory was not enough for engine and trainer at once."
        return f"{told}, and hot-swap would have saved nearly all of it."
    return (
        f"Adapters were swapped into a running server: after the first start that cost"
        f" {duration(engine + reclaim)} in all, so there is nothing to gain from it."
    )


def _concurrency_sentence(in_flight: int, seats: int) -> str:
    if seats < in_flight:
        return (
            f"At most {seats} of a step's {in_flight} attempts were played at once. With more"
            " (rollout.concurrency = 0 is all; engine.max_num_seqs) a rollout takes as long as its"
            " longest attempts, where memory allows it."
        )
    return (
        f"All {in_flight} attempts of a step were in flight at once: more concurrency cannot make"
        " a rollout shorter."
    )


def _pause_sentence(journal: Sequence[Entry]) -> tuple[str, ...]:
    """How long the loop waited to do failed phases again, at most."""
    pauses = [(e.data, after.time - e.time) for e, after in pairwise(journal) if e.event == PAUSE]
    if not pauses:
        return ()
    waited = sum(min(said.get("seconds", 0.0), max(0.0, passed)) for said, passed in pauses)
    phases = Counter(f"{said.get('phase')} (exit {said.get('exit')})" for said, _ in pauses)
    which = ", ".join(f"{phase}{f' {n} times' if n > 1 else ''}" for phase, n in phases.items())
    return (
        f"The loop waited {duration(waited)} to do a failed phase again: {which}; journal.jsonl has"
        " the errors.",
    )


def _servers_sentence(journal: Sequence[Entry]) -> tuple[str, ...]:
    """What became of servers that were lost, of several."""
    lines = [str(e.data.get("text", "")) for e in journal if e.event == SERVERS]
    if not lines:
        return ()
    last = f"; at last, of {len(lines)} lines in journal.jsonl: {lines[-1]}" if lines[1:] else ""
    return (f"Of the servers: {lines[0]}{last}.",)


def _eval_sentence(evals: float, wall: float, eval_every: int) -> tuple[str, ...]:
    if evals < MUCH * wall:
        return ()
    fewer = "fewer held-out tasks (eval.tasks)"
    fewer += " or a larger run.eval_every leave" if eval_every else " leave"
    return (
        f"Evaluations took {duration(evals)} of {duration(wall)}: {fewer} more of the night for"
        " steps.",
    )
