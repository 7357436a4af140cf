"""The tables of a run, and the list `TABLES` of where each is shown.

The terminal, evidence.md, the page and `compare` all take their tables from this list. To add a
table, write a function of the findings and add one entry. Figures come from the findings; a table
adds only a difference, an interval or the test of a trend to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import groupby
from operator import itemgetter

from fieldkit.eval.stats import wilson
from fieldkit.records import AtStop, Signal
from reward.pool import TaskState
from rollout.yardsticks import YARDSTICKS
from scripts.evidence import health, learning, tables
from scripts.evidence.collect import TAGS, Evidence
from scripts.evidence.findings import Findings
from scripts.evidence.milestones import Gain, window
from scripts.evidence.played import BASE
from scripts.evidence.step_figures import (
    FIGURES,
    NOTHING,
    STOPS_DONE,
    StepFigure,
    env_figures,
    overlap_figures,
)
from scripts.words import quantities
from scripts.words.table import Table
from scripts.words.visible import visible


def sums_table(f: Findings) -> Table | None:
    """The sums of each evaluation, without pairs and tests; only if there is no evidence."""
    if f.evidence is not None or not f.summaries:
        return None
    return Table(
        "Evaluations, each by itself",
        ("arm", "attempts passed", "assertions that hold", "ended by itself", "mean turns"),
        tuple(
            (
                s.arm,
                quantities.share(s.n_passed, s.n_trajectories),
                quantities.share(s.assertions_passed, max(1, s.assertions_total)),
                quantities.share(s.n_stopped, s.n_trajectories),
                quantities.turns(s.mean_turns),
            )
            for s in f.summaries
        ),
        ("The matched comparison is missing (see above), so there is no test and no interval.",),
    )


def numbers_table(f: Findings) -> Table | None:
    """The numbers behind the curves; None if no step was played."""
    shown = [figure for figure in FIGURES if figure.is_number]
    return _numbers(f, "", [*shown, *overlap_figures(f.played)])


def env_numbers_table(f: Findings) -> Table | None:
    """The numbers of each environment behind the curves; None in a run with one environment."""
    shown = env_figures(f.played)
    return _numbers(f, "By environment", shown) if shown else None


def _numbers(f: Findings, title: str, shown: Sequence[StepFigure]) -> Table | None:
    rows = [
        (str(s.step), s.outcome.value.lower(), *[_number(figure.read(s)) for figure in shown])
        for s in f.played
    ]
    columns = ("step", "outcome", *[figure.symbol for figure in shown])
    return Table(title, columns, tuple(rows)) if rows else None


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}".replace("-", quantities.MINUS)


def gains_table(f: Findings) -> Table | None:
    """The changes of the figures over the night; None if there are too few steps."""
    if not f.milestones.gains:
        return None
    return Table(
        "Over the steps, as trailing means",
        _GAIN_COLUMNS,
        tuple(map(_gain_cells, f.milestones.gains)),
        (DRAW_NOTE,),
    )


def env_gains_table(f: Findings) -> Table | None:
    """The same for each environment; None in a run with one environment, or with few steps."""
    of_envs = f.milestones.by_environment
    if not of_envs:
        return None
    return Table(
        "Training by environment",
        ("environment", *_GAIN_COLUMNS),
        tuple((env, *_gain_cells(g)) for env, gains in of_envs.items() for g in gains),
        ("Means over a tenth of the steps in which the environment was played, at least 3.",),
    )


_GAIN_COLUMNS = ("figure", "first", "last", "most of it by step", "in the last third")

DRAW_NOTE = (
    "Each step plays other tasks, so that a change may be one of the draw; without a p it is not"
    " tested."
)


def _gain_cells(g: Gain) -> tuple[str, ...]:
    return (
        g.figure,
        f"{g.first:.2f}",
        f"{g.last:.2f}",
        NOTHING if g.most_by_step is None else str(g.most_by_step),
        quantities.signed(g.last_third, 2),
    )


def pool_states_table(f: Findings) -> Table | None:
    """How many tasks of the pool are in which state, with the outlook and the forecast; None if
    nothing was drawn or the pool could not be read."""
    if f.pool is None or not f.pool.history.steps:
        return None
    state = f.pool.state
    outlook = f"{state.outlook[:1].upper()}{state.outlook[1:]}."
    return Table(
        "What the pool can teach",
        ("tasks", *(s.value for s in TaskState)),
        ((str(len(state.tasks)), *(str(len(state.of(s))) for s in TaskState)),),
        (outlook, f.pool.forecast.message),
    )


def pool_table(f: Findings) -> Table | None:
    """Every pool task, learnable ones first; None if the pool could not be read."""
    if f.pool is None:
        return None
    seen, tasks = f.pool.history.by_task, f.pool.state.tasks
    return Table(
        "",
        ("task", "now", "solve rate", "learnable next", "drawn", "history (signal: steps)"),
        tuple(
            (
                visible(task),
                tasks[task].state.value,
                quantities.percent(tasks[task].solve_rate.mean),
                quantities.percent(tasks[task].learnable),
                str(len(seen.get(task, ()))),
                _history(seen.get(task, ())),
            )
            for task in f.pool.ranked
        ),
        (
            "Expected values: solve rate is the share of attempts that pass, learnable next the"
            " probability that the attempts of the next group differ in their work.",
        ),
    )


def _history(drawn: Sequence[tuple[int, Signal]]) -> str:
    """Each signal once for the steps in a row that had it: it seldom changes."""
    spells = (
        f"{signal.lower()}: {', '.join(str(step) for step, _ in spell)}"
        for signal, spell in groupby(drawn, key=itemgetter(1))
    )
    return "; ".join(spells) or NOTHING


def parts_table(evidence: Evidence) -> Table | None:
    """The parts of the reward, by environment: at the start, at the best arm and at the last. None
    where no environment gives rewards."""
    rows = evidence.reward_parts
    if not rows:
        return None
    arms = start_best_last(evidence)
    return Table(
        "Parts of the reward",
        ("environment", "part", "weight", *arms),
        tuple(
            (row.env, row.name, f"{row.weight:g}", *(_mean_cell(row.means.get(a)) for a in arms))
            for row in rows
        ),
        ("Means over the attempts to which a part applies. Nothing is learned from weight 0.",),
    )


def start_best_last(evidence: Evidence) -> list[str]:
    """Yardsticks and base, the reference, the trained arm that passes most, and the newest."""
    untrained = {*YARDSTICKS, BASE, evidence.reference}
    trained = [a for a in evidence.arms if a.name not in untrained]
    best = max(trained, key=lambda a: a.pass_rate.value, default=None)
    wanted = {*untrained, evidence.newest, best.name if best else None}
    return [a.name for a in evidence.arms if a.name in wanted]


def _mean_cell(mean: float | None) -> str:
    return NOTHING if mean is None else f"{mean:.3f}".replace("-", quantities.MINUS)


def work_table(f: Findings) -> Table | None:
    """What shows a reward that is had without work, at the start and at the end; None if nothing
    is known of it."""
    gains = {g.figure: g for g in f.milestones.gains}
    rows: list[tuple[str, ...]] = []
    n = window(f.milestones.n_steps)
    notes = [f"Start and end are the first and the last steps, at most {n} of each. {DRAW_NOTE}"]
    if "reward" in gains and "pass rate" in gains:
        reward, passed = gains["reward"], gains["pass rate"]
        ends = quantities.plain(reward.first, 2), quantities.plain(reward.last, 2)
        change = quantities.signed(reward.last - reward.first, 2)
        rows.append(("reward of an attempt", *ends, change, "up while fewer tasks pass"))
        ends = quantities.percent(passed.first), quantities.percent(passed.last)
        change = quantities.points(passed.last - passed.first)
        rows.append(("attempts that pass", *ends, change, "down while the reward is up"))
    if (stops := health.stops_first_and_last(f.played)) is not None:
        done = (_of_stops(e.passed, e.n) for e in stops)
        rows.append(("stops with everything done", *done, _done_change(f, *stops), NOTHING))
        idle = (_of_stops(e.idle, e.n) for e in stops)
        bound = f"surely above {quantities.percent(health.IDLE)}"
        rows.append(("stops with nothing done", *idle, NOTHING, bound))
        notes.append(
            "A stop is an attempt that ended by itself. Nothing done: no more assertions hold than"
            " at the start. Their intervals take attempts as independent. p: Kendall's test of the"
            " share over the steps with a stop."
        )
    e = f.evidence
    if e is not None and e.newest and (split := e.by_need) and split.gained:
        arms = split.held[e.reference], split.held[e.newest]
        met, unmet = ([_share(arm[i], split.totals[i]) for arm in arms] for i in (0, 1))
        gain, work = map(quantities.estimate, split.gained)
        rows.append(("held-out assertions that need work", *unmet, work, NOTHING))
        bound = "most of the gain, and no more tasks pass"
        rows.append(("held-out assertions that doing nothing meets", *met, gain, bound))
        notes.append(f"On held-out tasks they are the {e.reference} and {e.newest}.")
    columns = ("sign", "start", "end", "change", "a warning if")
    return Table(WORK, columns, tuple(rows), (" ".join(notes),)) if rows else None


WORK = "Is the reward earned by work?"


def _done_change(f: Findings, first: AtStop, last: AtStop) -> str:
    """The change in the share of stops that are done, in points, with the p of its trend, where a
    trend is one of the policy."""
    trend = learning.trend(f.played, STOPS_DONE)
    if not (first.n and last.n and trend):
        return NOTHING
    change = quantities.points(last.passed / last.n - first.passed / first.n)
    p = f", p {quantities.p_value(trend.p_value, equals=True)}" if f.drawn_alike else ""
    return f"{change}{p}"


def _of_stops(count: int, n: int) -> str:
    return f"{count}/{n} {tables.percents(wilson(count, n))}" if n else NOTHING


def _share(count: int, total: int) -> str:
    return quantities.share(count, total) if total else NOTHING


# --- the list -------------------------------------------------------------------------------------


class Section(StrEnum):
    """The section of the page that contains a table."""

    MATCHED = "matched"
    CURVES = "curves"
    MILESTONES = "milestones"
    SPLITS = "splits"
    STOPS = "stops"
    WORK = "work"
    POOL = "pool"


Make = Callable[[Findings], Table | None]
"""Makes a table; None if there is nothing to show."""


@dataclass(frozen=True)
class Shown:
    """A table of the run, and where it is shown.

    in_text: also on the terminal and in evidence.md. on_page: the page shows this table instead.
    """

    make: Make
    section: Section
    in_text: bool = True
    on_page: Make | None = None


def of_evidence(make: Callable[[Evidence], Table | None]) -> Make:
    """Turn a table of the evidence into one of the findings: None if there is no evidence."""
    return lambda f: make(f.evidence) if f.evidence is not None else None


TABLES: list[Shown] = [
    Shown(
        of_evidence(tables.main_table), Section.MATCHED, on_page=of_evidence(tables.by_arm_table)
    ),
    Shown(
        of_evidence(tables.paired_table),
        Section.MATCHED,
        on_page=of_evidence(tables.wide_paired_table),
    ),
    Shown(of_evidence(tables.pass_at_k_table), Section.MATCHED),
    Shown(sums_table, Section.MATCHED, in_text=False),
    Shown(numbers_table, Section.CURVES, in_text=False),
    Shown(env_numbers_table, Section.CURVES, in_text=False),
    Shown(gains_table, Section.MILESTONES, in_text=False),
    Shown(env_gains_table, Section.MILESTONES),
    Shown(of_evidence(tables.late_table), Section.MILESTONES),
    *[Shown(of_evidence(partial(tables.split_table, tag=tag)), Section.SPLITS) for tag in TAGS],
    Shown(of_evidence(parts_table), Section.SPLITS),
    Shown(of_evidence(tables.kind_table), Section.SPLITS),
    Shown(of_evidence(tables.stops_table), Section.STOPS),
    Shown(work_table, Section.WORK),
    Shown(pool_states_table, Section.POOL, on_page=lambda f: None),
    Shown(pool_table, Section.POOL, in_text=False),
]
"""Every table of a run, in reading order."""


def text_tables(f: Findings) -> Iterator[Table]:
    """The tables of the terminal and of evidence.md."""
    for shown in TABLES:
        if shown.in_text and (table := shown.make(f)) is not None:
            yield table


def page_tables(f: Findings, section: Section) -> list[Table]:
    """The tables of one section of the page."""
    made = [(shown.on_page or shown.make)(f) for shown in TABLES if shown.section is section]
    return [table for table in made if table is not None]
