"""Measurements of a bench, kept one by one, so that a bench that was ended goes on.

Contestants take turns, and every second round in the opposite order, so that a machine that grows
slower or faster meets all of them alike. A file belongs to one machine, one commit and one amount
of work; another one's is put aside.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fieldkit.files.journal import Journal

Values = dict[str, Any]
"""What one measurement found, JSON-ready."""


class Measurements:
    """The measurements in one file. about: what the file belongs to; its first line."""

    def __init__(self, file: Path, about: Values) -> None:
        self.about = about
        self.found: dict[tuple[str, str, int], Values] = {}
        self._journal = Journal(file)
        kept = [entry.data for entry in self._journal.read()]
        if kept and kept[0] != about:
            aside = file.with_suffix(f".{int(time.time())}.jsonl")
            file.rename(aside)
            tell(f"another machine, commit or amount of work: {file} is now {aside}")
            kept = []
        if not kept:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._journal.append("about", **about)
        for value in kept[1:]:
            self.found[value["part"], value["contestant"], value["round"]] = value["values"]

    def take(self, part: str, contestant: str, round_: int, do: Callable[[], Values]) -> Values:
        """The stored values, or those of `do`, which are stored with the machine's load."""
        key = (part, contestant, round_)
        if key not in self.found:
            load, began = os.getloadavg()[0], time.monotonic()
            values = {**do(), "load": load}
            tell(f"{part}, {contestant}, round {round_ + 1}: {time.monotonic() - began:.0f} s")
            at = {"part": part, "contestant": contestant, "round": round_}
            self._journal.append("measured", **at, values=values)
            self.found[key] = values
        return self.found[key]

    def missing(self, part: str, contestants: Sequence[str], rounds: int) -> bool:
        """Whether a measurement of a part is still to be taken."""
        return any((part, c, r) not in self.found for c, r in in_turn(contestants, rounds))

    def of(self, part: str, contestant: str, name: str) -> list[float]:
        """One value of all rounds, in order."""
        found = [(r, v) for (p, c, r), v in self.found.items() if (p, c) == (part, contestant)]
        return [v[name] for _, v in sorted(found, key=lambda pair: pair[0])]

    def rounds(self, part: str) -> int:
        """How many rounds of a part were measured, at least in part."""
        return max((r + 1 for p, _, r in self.found if p == part), default=0)

    def contestants(self, part: str) -> list[str]:
        """Those of a part, in the order in which they were first measured."""
        return list(dict.fromkeys(c for p, c, _ in self.found if p == part))


def in_turn(contestants: Sequence[str], rounds: int) -> Iterator[tuple[str, int]]:
    """(contestant, round), every second round in the opposite order."""
    for round_ in range(rounds):
        for contestant in contestants if round_ % 2 == 0 else reversed(contestants):
            yield contestant, round_


def ratio_by_round(over: Sequence[float], under: Sequence[float]) -> float:
    """The median over rounds of the ratio within a round: drift between rounds cancels."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def tell(line: str) -> None:
    """A line of progress."""
    print(f"bench: {line}", file=sys.stderr, flush=True)
