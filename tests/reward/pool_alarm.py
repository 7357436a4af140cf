"""How often a pool is said to have converged before it has, and how late: on simulated nights.

`python -m tests.reward.pool_alarm` judges every rule on the same nights
(`tests.reward.pool_nights`) and writes docs/pool-alarm.json and docs/pool-alarm.md. That takes less
than a minute of one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fieldkit.files.atomic import write_json, write_text
from reward.pool import START_GROUPS, PoolSettings
from reward.solve_rate import GROUP_DISCOUNT
from scripts.base.checkout import ROOT
from tests.reward.pool_nights import BATCH, KINDS, Array, K, Setting, Step, play

# --- rules ----------------------------------------------------------------------------------------


class DeadBatch:
    """A step without a learnable group ends the night."""

    name = "one dead batch"

    def __init__(self, s: Setting) -> None:
        pass

    def alarms(self, step: Step) -> Array:
        """The nights that end with this step."""
        return np.logical_not(step.differs.any(1))


class EveryTask:
    """The rule until now: the newest group of every task is silent, and among the last two passes'
    worth of groups."""

    name = "every task silent"

    def __init__(self, s: Setting) -> None:
        self.learnable = np.ones((s.nights, s.n), dtype=bool)
        self.at = np.full((s.nights, s.n), -(10**9))
        self.groups = np.zeros(s.nights, dtype=int)

    def alarms(self, step: Step) -> Array:
        """The nights that end with this step."""
        rows, cols = np.nonzero(step.played)
        self.groups += step.played.sum(1)
        self.learnable[rows, step.chosen[rows, cols]] = step.differs[rows, cols]
        self.at[rows, step.chosen[rows, cols]] = self.groups[rows]
        newer = self.groups[:, None] - self.at < 2 * self.at.shape[1]
        silent: Array = (newer & ~self.learnable).all(1)
        return silent


class Posterior:
    """The rule of `reward.pool`: most probably the share of learnable groups is below the bound."""

    name = "posterior"

    def __init__(self, s: Setting, settings: PoolSettings | None = None) -> None:
        self.settings = settings or PoolSettings()

    def alarms(self, step: Step) -> Array:
        """The nights that end with this step. A step of which half the groups were learnable ends
        none (`scripts.run.state`)."""
        quiet = 2 * step.differs.sum(1) < step.played.sum(1)
        probability = step.sums.probability(step.chances, self.settings.bound)
        ends: Array = quiet & (probability >= self.settings.confidence)
        return ends


RULES = (DeadBatch, EveryTask, Posterior)


@dataclass
class Outcome:
    """What one rule did in the nights of a setting.

    fell: the share of nights in which the true share of learnable groups fell below the bound;
    ended: the share of nights that the rule ended; false: those in which the true share was not
    below the bound then; early: false ones within the first 20 steps. share: the
    mean true share at the end. delay: steps since the true share was first below the bound, the
    median and the 90th percentile of the nights that ended.
    """

    rule: str
    setting: Setting
    fell: float
    ended: float
    false: float
    early: float
    share: float | None
    delay: tuple[float, float] | None
    alarms: Array = field(repr=False)


def judge(s: Setting, bound: float, seed: int = 0, **changed: float) -> list[Outcome]:
    """Every rule on the same nights. changed: constants of the posterior, as in `play`."""
    rules = [rule(s) for rule in RULES]
    ends = [np.zeros(s.nights, dtype=int) for _ in rules]
    truth = np.zeros((s.nights, s.steps + 1))
    for step in play(s, seed, **changed):
        truth[:, step.number] = step.truth
        for rule, end in zip(rules, ends, strict=True):
            end[(end == 0) & rule.alarms(step)] = step.number
    below = truth[:, 1:] < bound
    first = np.where(below.any(1), below.argmax(1) + 1, 0)
    return [
        _outcome(rule.name, s, end, truth, first, bound)
        for rule, end in zip(rules, ends, strict=True)
    ]


def _outcome(
    rule: str, s: Setting, end: Array, truth: Array, first: Array, bound: float
) -> Outcome:
    ended = end > 0
    at_end = truth[np.arange(s.nights), end]
    false = ended & (at_end >= bound)
    late = (end - first)[ended & (first > 0)]
    return Outcome(
        rule,
        s,
        float((first > 0).mean()),
        float(ended.mean()),
        float(false.mean()),
        float((false & (end <= 20)).mean()),
        float(at_end[ended].mean()) if ended.any() else None,
        (float(np.median(late)), float(np.quantile(late, 0.9))) if len(late) else None,
        end,
    )


# --- the page -------------------------------------------------------------------------------------

SETTINGS = (
    *(Setting(kind, 42, nights=2000, steps=20) for kind in ("steady", "hard", "rare")),
    *(
        Setting(kind, n, draw, nights=200 if n == 42 else 60)
        for n in (42, 892)
        for draw in ("uniform", "frontier")
        for kind in KINDS
    ),
    Setting("saturating", 42, "uniform", spare=8),
    Setting("saturating", 42, "frontier", spare=8),
    Setting("saturating", 892, "uniform", spare=8, nights=60),
)
EARLY = Setting("rare", 42, nights=2000, steps=20)
SATURATING = tuple(Setting("saturating", 42, draw) for draw in ("uniform", "frontier"))
CONSTANTS: dict[str, tuple[Sequence[float], Sequence[Setting]]] = {
    "group_discount": ((0.97, GROUP_DISCOUNT, 0.93, 0.9), SATURATING),
    "start_groups": ((0, 8, START_GROUPS, 32), (EARLY, *SATURATING)),
}
"""Of the posterior: the values that were tried, and the nights on which they matter."""


Tried = dict[str, dict[float, list[Outcome]]]
"""By constant and value."""


def page(found: Sequence[Outcome], tried: Tried, bound: float) -> str:
    """docs/pool-alarm.md."""
    parts = [
        f"""# When a pool has converged: false alarms and delay

Written by `python -m tests.reward.pool_alarm`; `tests/reward/pool_nights.py` says how nights are
simulated. Steps of {BATCH} tasks, groups of {K} attempts, 400 steps a night (20 in the first three
rows). The share is that of the groups that would differ, by the true solve rates and as tasks are
drawn. "fell" counts the nights in which it fell below {100 * bound:.0f} %, "ended" those that the
rule ended, and "falsely" those that it ended while the share was not below. The delay counts from
the first step below: median, and in brackets the 90th percentile, of the nights that were ended."""
    ]
    for rule in RULES:
        rows = [
            (str(o.setting.n), o.setting.told, o.setting.kind, str(o.setting.nights), *_cells(o))
            for o in found
            if o.rule == rule.name
        ]
        said = " ".join((rule.__doc__ or "").split())
        columns = ("pool", "draws", "tasks are", "nights", *FIGURES)
        parts += [f"## {rule.name}", said, _markdown(columns, rows)]
    parts += [
        "## The posterior with other constants",
        f"`reward.solve_rate.GROUP_DISCOUNT` is {GROUP_DISCOUNT}, `reward.pool.START_GROUPS`"
        f" {START_GROUPS:.0f}. The pool has 42 tasks; nights of rare tasks have 20 steps.",
    ]
    for name, by_value in tried.items():
        lines = [
            (f"{value:g}", o.setting.told, o.setting.kind, *_cells(o))
            for value, outcomes in by_value.items()
            for o in outcomes
        ]
        wide = (name.replace("_", " "), "draws", "tasks are", *FIGURES)
        parts.append(_markdown(wide, lines))
    return "\n\n".join(parts) + "\n"


FIGURES = ("fell", "ended", "falsely", "share then", "delay, steps")


def _cells(o: Outcome) -> tuple[str, ...]:
    if not o.ended:
        return _percent(o.fell), "0 %", "–", "–", "–"
    delay = "–" if o.delay is None else f"{o.delay[0]:.0f} ({o.delay[1]:.0f})"
    return _percent(o.fell), _percent(o.ended), _percent(o.false), _percent(o.share), delay


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}".removesuffix(".0") + " %"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["--:"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(
    out: Annotated[Path, typer.Option(help="Folder of the two files.")] = ROOT / "docs",
    seed: Annotated[int, typer.Option(help="Of all nights.")] = 0,
) -> None:
    """Simulate nights; write pool-alarm.json and pool-alarm.md."""
    settings = PoolSettings()
    found = [o for s in SETTINGS for o in judge(s, settings.bound, seed)]
    tried = {
        name: {
            value: [judge(s, settings.bound, seed, **{name: value})[-1] for s in nights]
            for value in values
        }
        for name, (values, nights) in CONSTANTS.items()
    }
    write_json(
        out / "pool-alarm.json",
        {
            "schema": 1,
            "seed": seed,
            "bound": settings.bound,
            "confidence": settings.confidence,
            "rules": [_record(o) for o in found],
            "constants": {
                name: {f"{value:g}": [_record(o) for o in os] for value, os in by_value.items()}
                for name, by_value in tried.items()
            },
        },
    )
    write_text(out / "pool-alarm.md", page(found, tried, settings.bound))
    print(out / "pool-alarm.md")


def _record(o: Outcome) -> dict[str, Any]:
    figures = {k: v for k, v in vars(o).items() if k not in ("alarms", "setting")}
    return {**figures, "setting": asdict(o.setting)}


if __name__ == "__main__":
    typer.run(main)
