"""The page's sections as plain values: what the template shows, in its order.

Every section is made from one part of the material, and stands also where that part is missing.
Numbers and words come from the modules that the terminal uses; none is computed here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from markupsafe import Markup

from fieldkit.eval.matched import PairedRow
from rollout.arm import EvalSummary
from scripts.evidence.collect import BASE, TAGS, YARDSTICKS, Evidence, reading_order
from scripts.evidence.ending import ending, next_steps
from scripts.evidence.findings import Material, Pool
from scripts.evidence.flips import Change, Flips
from scripts.evidence.health import warnings
from scripts.evidence.milestones import Milestones, milestones
from scripts.evidence.step_figures import FIGURES
from scripts.evidence.tables import (
    arms_table,
    kind_table,
    late_table,
    main_table,
    paired_table,
    pass_at_k_table,
    split_table,
    stops_table,
)
from scripts.evidence.verdict import proven
from scripts.evidence.wall_time import WallTime, wall_time
from scripts.report import charts
from scripts.report.charts import Difference
from scripts.report.curves import draw_curves
from scripts.report.headline import headline
from scripts.report.provenance import used
from scripts.words import quantities
from scripts.words.table import Table
from scripts.words.visible import visible

CHANGE_WORDS = {
    Change.LOST: "lost",
    Change.WON: "won",
    Change.ENDING: "ended differently",
}


def sections(m: Material) -> dict[str, Any]:
    """Everything that the template needs, but for the transcripts' HTML."""
    wall = _wall_time(m)
    found = milestones(m.steps)
    end = ending(m)
    return {
        "name": m.name,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "ending": end,
        "next_steps": next_steps(m, end),
        "headline": headline(m, wall),
        "gaps": m.gaps,
        "warnings": warnings(m.played, found, m.config, m.manifest, m.evidence),
        "matched": _matched(m),
        "curves": draw_curves(m.played, m.evidence),
        "numbers": _step_table(m) if m.played else None,
        "milestones": _milestones(found, m.evidence),
        "wall": _waterfall(wall),
        "splits": _splits(m.evidence),
        "stops": _stops(m.evidence),
        "flipped": _flipped(m.flips),
        "pool": _pool(m.pool),
        "used": used(m.manifest, m.steps),
    }


def _wall_time(m: Material) -> WallTime | None:
    rollout = m.config.rollout
    in_flight = rollout.tasks_per_step * rollout.group_size
    seats = (rollout.concurrency or in_flight, m.config.engine.max_num_seqs)
    return wall_time(m.timings, m.journal, in_flight, min(seats))


# --- the matched table ----------------------------------------------------------------------------


def _matched(m: Material) -> dict[str, Any]:
    if m.evidence is None:
        return {"tables": [_sums(m.summaries)] if m.summaries else [], "chart": None}
    optional = (pass_at_k_table(m.evidence),)
    tables = [_by_arm(m.evidence), paired_table(m.evidence)]
    return {
        "tables": [*tables, *[t for t in optional if t is not None]],
        "chart": _differences_chart(m.evidence),
    }


def _by_arm(evidence: Evidence) -> Table:
    """The main table with a row for each arm; the differences are in the table below it."""
    table = main_table(evidence)
    return arms_table(table.title, evidence.arms, table.notes)


def _differences_chart(evidence: Evidence) -> Markup | None:
    shown = [p for p in evidence.paired if p.name != BASE or not evidence.newest]
    return differences_chart(shown, f"the {evidence.reference}") if shown else None


def differences_chart(shown: Sequence[PairedRow], reference: str) -> Markup:
    """Arms against `reference`: tasks passed, assertions and stops, with their intervals."""
    rows = [
        *[
            Difference(f"{p.name}: tasks passed", p.passed.difference, proven(p.passed))
            for p in shown
        ],
        *[
            Difference(f"{p.name}: assertions", p.assertion_rate, p.assertion_rate.sign)
            for p in shown
        ],
        *[
            Difference(f"{p.name}: ended by itself", p.stopped.difference, proven(p.stopped))
            for p in shown
        ],
    ]
    return charts.differences(rows, f"points against {reference}, with 95 % intervals")


def _sums(summaries: Sequence[EvalSummary]) -> Table:
    """What each evaluation wrote down of itself: no pairs, no tests, but better than nothing."""
    return Table(
        "Evaluations, each by itself",
        ("arm", "tasks passed", "assertions that hold", "ended by itself", "mean turns"),
        tuple(
            (
                s.arm,
                quantities.share(s.n_passed, s.n_trajectories),
                quantities.share(s.assertions_passed, max(1, s.assertions_total)),
                quantities.share(s.n_stopped, s.n_trajectories),
                quantities.turns(s.mean_turns),
            )
            for s in sorted(summaries, key=lambda s: reading_order(s.arm))
        ),
        ("The matched comparison is missing (see above), so there is no test and no interval.",),
    )


# --- steps ----------------------------------------------------------------------------------------


def _step_table(m: Material) -> Table:
    """The numbers behind the curves."""
    shown = [figure for figure in FIGURES if figure.is_number]
    rows = [
        (str(s.step), s.outcome.value.lower(), *[_number(figure.read(s)) for figure in shown])
        for s in m.played
    ]
    return Table("", ("step", "outcome", *[figure.symbol for figure in shown]), tuple(rows))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}".replace("-", "−")


def _milestones(found: Milestones, evidence: Evidence | None) -> dict[str, Any]:
    gains = Table(
        "Over the steps, as trailing means",
        ("figure", "first", "last", "most of it by step", "last third bought"),
        tuple(
            (
                g.figure,
                f"{g.first:.2f}",
                f"{g.last:.2f}",
                "–" if g.most_by_step is None else str(g.most_by_step),
                quantities.signed(g.last_third, 2),
            )
            for g in found.gains
        ),
    )
    late = late_table(evidence) if evidence else None
    tables = [gains] if gains.rows else []
    return {"sentences": found.sentences, "tables": [*tables, *([late] if late else [])]}


def _waterfall(wall: WallTime | None) -> dict[str, Any] | None:
    if wall is None:
        return None
    return {"sentences": wall.sentences, "chart": charts.waterfall(wall)}


# --- where it changed -----------------------------------------------------------------------------


def _splits(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    tables = [split_table(evidence, tag) for tag in TAGS if tag in evidence.splits]
    rows = [
        Difference(row.value, row.paired.assertion_rate, row.paired.assertion_rate.sign)
        for split in (*evidence.splits.values(), evidence.kinds)
        for row in split
        if row.paired is not None
    ]
    unit = "points of assertions that hold, with 95 % intervals"
    chart = charts.differences(rows, unit) if rows else None
    return {"tables": [*tables, kind_table(evidence)], "chart": chart}


def _stops(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    played = {n: s for n, s in evidence.stops.items() if n not in YARDSTICKS}
    return {
        "table": replace(stops_table(evidence), title=""),
        "chart": charts.endings(played) if played else None,
    }


def _flipped(flips: Flips | None) -> dict[str, Any] | None:
    """Every flipped task by name; the transcripts come beside."""
    if flips is None:
        return None
    return {
        "before": flips.before,
        "after": flips.after,
        "counts": {CHANGE_WORDS[c]: len(flips.of(c)) for c in Change},
        "names": {CHANGE_WORDS[c]: [visible(f.task.task_id) for f in flips.of(c)] for c in Change},
    }


# --- the pool -------------------------------------------------------------------------------------


def _pool(pool: Pool | None) -> dict[str, Any] | None:
    if pool is None:
        return None
    state = asdict(pool.state)
    words = ("learnable", "saturated", "stuck", "stale", "never_seen")
    named = {word.replace("_", " "): state[word] for word in words}
    tasks = [task for members in named.values() for task in members]
    return {
        "message": pool.state.message,
        "forecast": _forecast_sentence(pool),
        "chart": charts.pool_history(pool.history, tasks),
        "n_seen": len(pool.history.by_task()),
        "most_drawn": charts.POOL_ROWS,
        "table": _pool_table(pool, named),
    }


def _pool_table(pool: Pool, named: dict[str, Sequence[str]]) -> Table:
    seen = pool.history.by_task()
    return Table(
        "",
        ("task", "now", "drawn", "history (step: signal)"),
        tuple(
            (visible(task), word, str(len(drawn)), _history(drawn))
            for word, members in named.items()
            for task in members
            for drawn in [seen.get(task, ())]
        ),
    )


def _history(drawn: Sequence[tuple[int, Any]]) -> str:
    return ", ".join(f"{step}: {signal.value.lower()}" for step, signal in drawn) or "–"


def _forecast_sentence(pool: Pool) -> str:
    f = pool.forecast
    if f.step is not None:
        return f"If it goes on falling as it has, the signal runs out around step {f.step}."
    passes = len(f.shares)
    told = f"{passes} whole pass{'' if passes == 1 else 'es'} through the pool"
    if passes < 3:
        return f"No forecast yet: {told} so far, and a line needs three."
    return f"The share of learnable groups is not falling over {told}: no end is in sight."
