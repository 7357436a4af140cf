"""The charts besides the curves: differences with intervals, wall time, stop reasons, the pool.

Each takes computed numbers and returns an SVG for the page. Labels may come from task files, so
they are never read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from fieldkit.eval.stats import Estimate
from fieldkit.records import Signal, StopReason
from reward.pool_history import PoolHistory
from scripts.evidence.wall_time import Part, WallTime
from scripts.report import drawing
from scripts.report.drawing import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PAPER, PURPLE, RED
from scripts.words.quantities import duration
from scripts.words.visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_HEIGHT = 0.25
"""Inches of one row of a chart with rows."""

ARM_ROWS = 12
"""Most arms of a night in a chart: those of a long one, each with rows of its own, take a yard of
the page. The table next to the chart has all of them."""

POOL_ROWS = 60
"""Most pool tasks in the chart; the table has all of them."""

LABEL_CHARS = 30

LEGEND_COLUMNS = 3

WIDE_BAR = 0.25
"""A bar with a larger share of the wall time has room for its text."""


def spread(arms: Sequence[str], kept: Collection[str]) -> tuple[set[str], str]:
    """At most `ARM_ROWS` of a night's arms, in reading order: those that are kept, and others in
    even steps. With the caption of a chart that says so; empty where these are all."""
    others = [arm for arm in arms if arm not in kept]
    room = max(0, ARM_ROWS - (len(arms) - len(others)))
    if len(others) <= room:
        return {*arms}, ""
    shown = {*arms} & {*kept} | {others[len(others) * i // room] for i in range(room)}
    return shown, f"{len(shown)} of {len(arms)} arms; all are in the table."


@dataclass(frozen=True)
class Difference:
    """One row of the chart of differences. sign: of a proven difference, else 0."""

    label: str
    estimate: Estimate
    sign: int


def differences(rows: Sequence[Difference], unit: str) -> Markup:
    """Differences from the reference as dots with 95 % intervals, and a line at zero."""
    labels = [_label(row.label) for row in rows]
    figure, axes = drawing.make_rows(labels, 0.75 + ROW_HEIGHT * len(rows))
    axes.axvline(0, color=MUTED, linewidth=1)
    colours = [{1: GREEN, -1: RED, 0: MUTED}[row.sign] for row in rows]
    # All rows at once: a line of its own for each takes four times as long.
    known = [(y, r.estimate.interval) for y, r in enumerate(rows) if r.estimate.interval]
    axes.hlines(
        [y for y, _ in known],
        [100 * interval.low for _, interval in known],
        [100 * interval.high for _, interval in known],
        colors=[colours[y] for y, _ in known],
        linewidth=2,
    )
    values = [100 * row.estimate.value for row in rows]
    axes.scatter(values, range(len(rows)), s=5**2, c=colours, linewidths=1, zorder=2)
    axes.set_xlabel(unit)
    axes.grid(axis="x")
    return drawing.as_svg(figure, f"Differences with 95 % intervals, {unit}")


def _label(text: str) -> str:
    text = visible(text).replace("\n", " ")
    # Ids differ at their end, so the end is kept.
    return text if len(text) <= LABEL_CHARS else "…" + text[1 - LABEL_CHARS :]


def waterfall(wall: WallTime) -> Markup:
    """One bar per part: each begins where the previous one ends; together they are the wall."""
    labels = [_label(part.name) for part in wall.parts]
    figure, axes = drawing.make_rows(labels, 0.6 + ROW_HEIGHT * len(labels))
    began = 0.0
    for y, part in enumerate(wall.parts):
        axes.barh(y, part.seconds / 60, left=began / 60, height=0.62, color=BLUE)
        _bar_text(axes, y, began, part, wall.wall)
        began += part.seconds
    axes.set_xlim(0, 1.02 * wall.wall / 60)
    axes.set_xlabel("minutes")
    axes.grid(axis="x")
    return drawing.as_svg(figure, "Wall time by part")


def _bar_text(axes: Axes, y: int, began: float, part: Part, wall: float) -> None:
    """Label a bar: inside if it is wide, else on the side with more room."""
    percent = f"{100 * part.share:.0f} %" if part.share >= 0.005 else "<1 %"
    ended = began + part.seconds
    if part.share > WIDE_BAR:
        where, offset, side, colour = began, 5, "left", PAPER
    elif ended < 0.6 * wall:
        where, offset, side, colour = ended, 5, "left", INK
    else:
        where, offset, side, colour = began, -5, "right", INK
    axes.annotate(
        f"{duration(part.seconds)} · {percent}",
        (where / 60, y),
        xytext=(offset, 0),
        textcoords="offset points",
        ha=side,
        va="center",
        color=colour,
    )


ENDINGS = (
    (StopReason.TASK_COMPLETE, GREEN),
    (StopReason.MAX_TURNS, RED),
    (StopReason.CONTEXT_FULL, ORANGE),
    (StopReason.TIME_LIMIT, BLUE),
    (StopReason.REPLY_CUT, PURPLE),
    (StopReason.ENV_DONE, MUTED),
)


def endings(stops: Mapping[str, Mapping[str, int]]) -> Markup:
    """Stop reasons as shares of each arm's attempts."""
    present = [(r, c) for r, c in ENDINGS if any(s.get(r.value) for s in stops.values())]
    figure, axes = drawing.make_rows(
        [_label(arm) for arm in stops],
        0.9 + ROW_HEIGHT * len(stops),
        legend=math.ceil(len(present) / LEGEND_COLUMNS),
    )
    begun = [0.0] * len(stops)
    totals = [max(1, sum(counts.values())) for counts in stops.values()]
    for reason, colour in present:
        pairs = zip(stops.values(), totals, strict=True)
        shares = [100 * counts.get(reason.value, 0) / total for counts, total in pairs]
        axes.barh(range(len(stops)), shares, left=begun, height=0.62, color=colour, label=reason)
        begun = [a + b for a, b in zip(begun, shares, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of attempts")
    figure.legend(loc="upper center", ncols=LEGEND_COLUMNS, borderaxespad=0.0)
    return drawing.as_svg(figure, "Why attempts ended")


SIGNAL_MARKS = {Signal.LEARNABLE: "s", Signal.SATURATED: "o", Signal.STUCK: "x"}


def pool_history(history: PoolHistory, tasks: Sequence[str]) -> Markup | None:
    """The signal of every group of every pool task, by step. None if no task was drawn."""
    seen = history.by_task
    rows = [t for t in tasks if t in seen][:POOL_ROWS]
    if not rows:
        return None
    labels = [_label(task) for task in rows]
    figure, axes = drawing.make_rows(labels, 0.9 + 0.18 * len(rows), legend=1, size=7.5)
    for signal, mark in SIGNAL_MARKS.items():
        points = [(s, y) for y, t in enumerate(rows) for s, found in seen[t] if found is signal]
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            linestyle="",
            marker=mark,
            markersize=5,
            color=drawing.SIGNAL_COLOURS[signal],
            label=signal.value.lower(),
        )
    axes.grid(axis="y", color=GRID, linewidth=0.4)
    drawing.whole_steps(axes)
    figure.legend(loc="upper center", ncols=LEGEND_COLUMNS, borderaxespad=0.0)
    return drawing.as_svg(figure, "What each task of the pool could teach, by step")
