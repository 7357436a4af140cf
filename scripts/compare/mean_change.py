"""The mean of several arms by task, against the mean of others: arms that only luck tells apart.

One night says nothing about the next one, so nights of several seeds count together: of every task
the mean over them, and tests over the tasks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fieldkit.eval import resampling, stats
from fieldkit.eval.matched import TaskOutcome
from fieldkit.eval.stats import Estimate

Outcomes = Mapping[str, TaskOutcome]
"""One arm's, by task."""

MEASURES: dict[str, Callable[[TaskOutcome], float]] = {
    "passed": lambda o: float(o.passed),
    "stopped": lambda o: float(o.stopped),
    "turns": lambda o: float(o.turns),
}
"""What is compared, of one task."""


@dataclass(frozen=True)
class Change:
    """A mean difference by task, and the p-value of the sign-flip test, which may be adjusted
    (Holm) over the rows of a table."""

    estimate: Estimate
    p: float

    @property
    def sign(self) -> int:
        """+1 or −1 where test and interval agree on it, else 0."""
        return self.estimate.sign if self.p < 1 - stats.LEVEL else 0


Changes = Mapping[str, Change]
"""By measure."""


def by_task(arms: Sequence[Outcomes], measure: str) -> list[float]:
    """Of each task the mean over the arms, in the order of the ids."""
    value = MEASURES[measure]
    return [statistics.fmean(value(arm[task]) for arm in arms) for task in sorted(arms[0])]


def changes(before: Sequence[Outcomes], after: Sequence[Outcomes]) -> Changes:
    """after − before by measure, not adjusted. All arms have the same tasks."""
    found = {}
    for measure in MEASURES:
        first, second = by_task(before, measure), by_task(after, measure)
        differences = [b - a for a, b in zip(first, second, strict=True)]
        estimate = resampling.mean_difference(first, second)
        found[measure] = Change(estimate, resampling.sign_flips(differences))
    return found


def adjusted(rows: Sequence[Changes]) -> list[Changes]:
    """The rows of one table with their p-values adjusted, each measure by itself."""
    found: list[dict[str, Change]] = [dict(row) for row in rows]
    for measure in MEASURES if rows else ():
        p_values = stats.holm([row[measure].p for row in rows])
        for row, p in zip(found, p_values, strict=True):
            row[measure] = replace(row[measure], p=p)
    return list(found)
