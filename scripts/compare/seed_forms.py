"""A comparison over seeds in four forms: terminal, Markdown, JSON and one HTML page.

All show the same numbers. The sentences claim a difference only where test and interval agree, and
say of these nights what another seed may turn round.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from scripts.compare.mean_change import Change, Changes
from scripts.compare.over_seeds import SeedNight, SeedsArm, SeedsComparison
from scripts.compare.shown import Shown, markdown_form, rich_form
from scripts.evidence.collect import about_tasks
from scripts.evidence.step_figures import NOTHING
from scripts.words.quantities import counted, estimate, p_value, percent, plain, span
from scripts.words.table import Table

if TYPE_CHECKING:
    from rich.console import Group

METHOD = (
    "Of every task the mean over an arm's nights counts, at one attempt a night. p: sign-flip"
    " permutation test over the tasks, adjusted over the rows of its table (Holm). Brackets: 95 %"
    " intervals, bootstrap over tasks, not adjusted. Both speak of other tasks made as these"
    " were, for these nights. Over nights: Student's 95 % interval of the mean change, with the"
    " nights as observations, for nights with other seeds."
)

BY_NIGHTS = 0.05
"""Welch's p below which a difference between arms is said of more than these nights."""


def title(c: SeedsComparison) -> str:
    """The title of the comparison."""
    n = sum(len(arm.nights) for arm in c.arms)
    tasks = f"{c.n_tasks} {c.played_on.value} tasks"
    return f"{counted(len(c.arms), 'arm')}, {counted(n, 'night')}, {tasks}"


def sentences(c: SeedsComparison) -> tuple[str, ...]:
    """What can be said of each arm."""
    gains = [
        f"{arm.name}: {passes(arm.gain['passed'], 'at the start')}{_over_nights(arm)}"
        for arm in c.arms
    ]
    others = [
        f"{arm.name} against {c.reference}: {passes(arm.against['passed'], f'with {c.reference}')}"
        f"{_other_seeds(arm)}"
        for arm in c.arms
        if arm.against is not None
    ]
    return (*gains, *others)


def _over_nights(arm: SeedsArm) -> str:
    """What a gain, found over the tasks, says of nights with other seeds."""
    over = arm.gain_over_nights
    if not arm.gain["passed"].sign or over.interval is None:
        return ""
    doubt = "" if over.sign else ": other seeds may turn it round"
    return f" Over nights the mean change is between {span(over.interval, joined=' and ')}{doubt}."


def _other_seeds(arm: SeedsArm) -> str:
    """What a difference between two arms, found over the tasks, says of other nights."""
    if arm.against is None or not arm.against["passed"].sign:
        return ""
    if arm.p_by_nights is None:
        return " Nights with other seeds may turn it round: too few, or too much alike, to say."
    if arm.p_by_nights < BY_NIGHTS:
        return f" The nights' own figures agree (Welch's p {p_value(arm.p_by_nights, True)})."
    return (
        " Nights with other seeds may turn it round: within an arm they differ too"
        f" (Welch's p {p_value(arm.p_by_nights, True)})."
    )


def passes(change: Change, than: str) -> str:
    """What can be said of a change in tasks passed."""
    by = estimate(change.estimate)
    if not change.sign:
        return f"passes cannot be told from those {than} ({by} points)."
    return f"{'more' if change.sign > 0 else 'fewer'} tasks pass than {than}, by {by} points."


def tables(c: SeedsComparison) -> tuple[Table, ...]:
    """Every table, in reading order."""
    gains = Table(
        "From its start",
        (
            "arm",
            "nights",
            "passed at the start",
            "passed at the end",
            "of each night",
            "change",
            "over nights",
            "ended by itself",
            "turns",
            "90 % stops by step",
        ),
        tuple(_gain_row(arm) for arm in c.arms),
        (*about_tasks(c.played_on, c.opened_before), METHOD, *_steps(c), *_unplayed(c), *c.remarks),
    )
    if len(c.arms) == 1:
        return (gains,)
    against = Table(
        f"Against {c.reference}",
        CHANGES_COLUMNS,
        tuple(changes_row(a.name, a.against) for a in c.arms if a.against is not None),
    )
    return (gains, against)


CHANGES_COLUMNS = ("arm", "passed", "ended by itself", "turns")


def changes_row(name: str, found: Changes) -> tuple[str, ...]:
    """The cells of changes by task, under `CHANGES_COLUMNS`."""
    turns = _tested(found["turns"], as_points=False)
    return name, _tested(found["passed"]), _tested(found["stopped"]), turns


def _gain_row(arm: SeedsArm) -> tuple[str, ...]:
    before, after = arm.means("passed")
    over = arm.gain_over_nights.interval
    return (
        arm.name,
        str(len(arm.nights)),
        percent(before),
        percent(after),
        ", ".join(_passed(night) for night in arm.nights),
        _tested(arm.gain["passed"]),
        NOTHING if over is None else f"[{span(over)}]",
        " → ".join(map(percent, arm.means("stopped"))),
        " → ".join(map(plain, arm.means("turns"))),
        ", ".join("never" if n is None else str(n) for n in (x.stops_90 for x in arm.nights)),
    )


def _passed(night: SeedNight) -> str:
    """Tasks passed at a night's start and at its end."""
    return " → ".join(f"{night.total(at, 'passed'):.0f}" for at in (night.start, night.end))


def _tested(change: Change, *, as_points: bool = True) -> str:
    told = estimate(change.estimate, as_points=as_points)
    return f"{told}, p {p_value(change.p, equals=True)}"


def _steps(c: SeedsComparison) -> tuple[str, ...]:
    """The steps of each arm, where nights have different ones: an arm of a sweep was dropped."""
    steps = {arm.name: sorted({len(n.steps) - 1 for n in arm.nights}) for arm in c.arms}
    if len({n for numbers in steps.values() for n in numbers}) == 1:
        return ()
    told = (f"{arm} {' and '.join(map(str, numbers))}" for arm, numbers in steps.items())
    return (f"Nights have different numbers of steps: {', '.join(told)}.",)


def _unplayed(c: SeedsComparison) -> tuple[str, ...]:
    if not c.unplayed:
        return ()
    return (f"Not over and evaluated yet, and left out: {', '.join(c.unplayed)}.",)


def rich_page(c: SeedsComparison) -> Group:
    """The comparison for the terminal."""
    return rich_form(tables(c), sentences(c))


def markdown(c: SeedsComparison) -> str:
    """The comparison as Markdown."""
    return markdown_form(title(c), tables(c), sentences(c))


def html(c: SeedsComparison, heading: str) -> str:
    """The comparison as one page in the report's style that opens without a network."""
    from scripts.report import charts, drawing
    from scripts.report.charts import Difference
    from scripts.report.page import environment
    from scripts.report.seed_curves import draw_seed_curves

    rows = [
        Difference(f"{named}tasks passed", change.estimate, change.sign)
        for arm in c.arms
        for change, named in ((arm.gain["passed"], f"{arm.name}: " if len(c.arms) > 1 else ""),)
    ]
    with drawing.style():
        chart = charts.differences(rows, "points against its start, with 95 % intervals")
        curves = draw_seed_curves({arm.name: [n.steps for n in arm.nights] for arm in c.arms})
    return (
        environment()
        .get_template("sweep.html.j2")
        .render(
            heading=heading,
            title=title(c),
            made=time.strftime("%Y-%m-%d %H:%M"),
            sentences=sentences(c),
            tables=tables(c),
            chart=chart,
            curves=curves,
        )
    )


def shown(c: SeedsComparison, heading: str) -> Shown:
    """The comparison in each of its forms; the page stands under `heading`."""
    return Shown(partial(rich_page, c), partial(markdown, c), c.plain, partial(html, c, heading))
