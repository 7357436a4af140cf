"""The page's sections as plain values for the template, in its order.

Every section is made from one part of the findings and exists even if that part is missing. Numbers
and wording come from the modules that the terminal uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from fieldkit.eval.matched import PairedRow
from rollout.yardsticks import YARDSTICKS
from scripts.evidence.collect import Evidence
from scripts.evidence.ending import ending, next_steps
from scripts.evidence.findings import Findings
from scripts.evidence.flips import Change
from scripts.evidence.health import unseen
from scripts.evidence.played import BASE
from scripts.evidence.run_tables import WORK, Section, page_tables, start_best_last
from scripts.evidence.step_figures import STOPS_DONE
from scripts.evidence.verdict import Habit, Verdict
from scripts.evidence.wall_time import WallTime, wall_time
from scripts.report import charts
from scripts.report.charts import Difference
from scripts.report.curves import FIRST, draw_curves
from scripts.report.headline import headline
from scripts.report.provenance import used
from scripts.run import memory_account
from scripts.run.config import RunConfig
from scripts.words.visible import visible

HABIT = (
    "The habit: the model does not say that it is done, so that an attempt goes on until its turn"
    " limit."
)
TERMS = (
    "Held-out tasks are never trained on. The warm start is the adapter that the night began with.",
    "Brackets are 95 % intervals over tasks; a difference whose interval holds zero can be luck.",
)

CHANGE_WORDS = {
    Change.LOST: "lost",
    Change.WON: "won",
    Change.ENDING: "ended differently",
}


def sections(f: Findings) -> dict[str, Any]:
    """All values for the template, except the transcripts' HTML."""
    wall = _wall_time(f)
    end = ending(f)
    drawn = draw_curves(f.played, f.evidence)
    return {
        "name": f.name,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "ending": end,
        "next_steps": next_steps(f, end),
        "headline": headline(f, wall),
        "gaps": f.gaps,
        "warnings": f.warnings,
        "unseen": unseen(f.config, f.played, f.milestones, f.evidence),
        "terms": terms(f.verdict),
        "matched": _with_tables(f, Section.MATCHED, _differences_chart),
        "curves": [c for c in drawn if c.title in FIRST],
        "more_curves": [c for c in drawn if c.title not in (*FIRST, STOPS_DONE.curve)],
        "numbers": page_tables(f, Section.CURVES),
        "milestones": f.milestones.sentences,
        "gains": page_tables(f, Section.MILESTONES),
        "wall": _waterfall(wall, (end.forecast, memory_account.told(f.journal, f.steps))),
        "splits": _with_tables(f, Section.SPLITS, _splits_chart),
        "stops": _with_tables(f, Section.STOPS, _endings_chart),
        "work": {
            "curves": [c for c in drawn if c.title == STOPS_DONE.curve],
            "tables": page_tables(f, Section.WORK),
            "heading": WORK,
        },
        "flipped": _flipped(f),
        "pool": _pool(f),
        "used": used(f.manifest, f.steps, f.journal),
    }


def terms(verdict: Verdict | None) -> tuple[str, ...]:
    """What the first screen's words mean."""
    return TERMS if verdict and verdict.habit is Habit.NEVER_THERE else (HABIT, *TERMS)


def _with_tables(
    f: Findings, section: Section, draw: Callable[[Evidence], tuple[Markup | None, str]]
) -> dict[str, Any]:
    """A section's tables, and its chart with a caption if there is evidence."""
    chart, caption = draw(f.evidence) if f.evidence is not None else (None, "")
    return {"chart": chart, "caption": caption, "tables": page_tables(f, section)}


def _wall_time(f: Findings) -> WallTime | None:
    in_flight = f.config.rollout.tasks_per_step * f.config.rollout.group_size
    return wall_time(f.timings, f.journal, in_flight, seats(f.config), f.config.run.eval_every)


def seats(config: RunConfig) -> int:
    """How many attempts of a step are played at once."""
    rollout, engine = config.rollout, config.engine
    asked = rollout.concurrency or rollout.tasks_per_step * rollout.group_size
    if engine.urls:
        return asked  # how many a person's own server plays at once, only that server knows
    return min(asked, engine.replicas * engine.data_parallel * engine.max_num_seqs)


# --- the matched table ----------------------------------------------------------------------------


def _differences_chart(evidence: Evidence) -> tuple[Markup | None, str]:
    played = [p for p in evidence.paired if p.name != BASE or not evidence.newest]
    if not played:
        return None, ""
    names, caption = charts.spread([p.name for p in played], start_best_last(evidence))
    shown = [p for p in played if p.name in names]
    return differences_chart(shown, f"the {evidence.reference}"), caption


def differences_chart(shown: Sequence[PairedRow], reference: str) -> Markup:
    """Arms against `reference`: tasks passed, assertions and stops, with their intervals."""
    of_all = {
        "tasks passed": [(p.passed.difference, p.passed.sign) for p in shown],
        "assertions": [(p.assertion_rate, p.assertion_rate.sign) for p in shown],
        "ended by itself": [(p.stopped.difference, p.stopped.sign) for p in shown],
    }
    rows = [
        Difference(f"{p.name}: {what}", estimate, sign)
        for what, found in of_all.items()
        for p, (estimate, sign) in zip(shown, found, strict=True)
    ]
    return charts.differences(rows, f"points against {reference}, with 95 % intervals")


def _waterfall(wall: WallTime | None, forecasts: Sequence[str]) -> dict[str, Any] | None:
    """forecasts: how they held, each in a sentence or empty."""
    if wall is None:
        return None
    sentences = (*wall.sentences, *filter(None, forecasts))
    return {"sentences": sentences, "chart": charts.waterfall(wall)}


# --- where it changed -----------------------------------------------------------------------------


def _splits_chart(evidence: Evidence) -> tuple[Markup | None, str]:
    rows = [
        Difference(row.value, row.paired.assertion_rate, row.paired.assertion_rate.sign)
        for split in (*evidence.splits.values(), evidence.kinds)
        for row in split
        if row.paired is not None
    ]
    unit = "points of assertions that hold, with 95 % intervals"
    return (charts.differences(rows, unit) if rows else None), ""


def _endings_chart(evidence: Evidence) -> tuple[Markup | None, str]:
    played = [name for name in evidence.stops if name not in YARDSTICKS]
    if not played:
        return None, ""
    names, caption = charts.spread(played, start_best_last(evidence))
    return charts.endings({n: s for n, s in evidence.stops.items() if n in names}), caption


def _flipped(f: Findings) -> dict[str, Any] | None:
    """The ids of all flipped tasks; their transcripts are rendered separately."""
    if (flips := f.flips) is None:
        return None
    return {
        "before": flips.before,
        "after": flips.after,
        "show": f"grpo show {f.typed} --task TASK --tokens",
        "counts": {CHANGE_WORDS[c]: len(flips.of(c)) for c in Change},
        "names": {CHANGE_WORDS[c]: [visible(f.task.task_id) for f in flips.of(c)] for c in Change},
    }


# --- the pool -------------------------------------------------------------------------------------


def _pool(f: Findings) -> dict[str, Any] | None:
    if (pool := f.pool) is None:
        return None
    return {
        "message": pool.state.message,
        "forecast": pool.forecast.message,
        "chart": charts.pool_history(pool.history, pool.ranked),
        "n_seen": len(pool.history.by_task),
        "most_drawn": charts.POOL_ROWS,
        "tables": page_tables(f, Section.POOL),
    }
