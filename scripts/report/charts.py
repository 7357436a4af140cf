"""The pictures that are no curves: differences with their intervals, wall time, endings, the pool.

Each takes numbers that are computed already and returns an SVG for the page. Labels may come from
task files, so nothing here reads them as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from fieldkit.eval.stats import Estimate
from fieldkit.records import Signal, StopReason
from reward.pool import PoolHistory
from scripts.evidence.wall_time import Part, WallTime, duration
from scripts.report import drawing
from scripts.report.drawing import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PAPER, RED
from scripts.words.visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_HEIGHT = 0.25
"""Inches of one row of a picture that has rows."""

POOL_ROWS = 60
"""Tasks of the pool that are drawn; the table has them all."""

LABEL_CHARS = 30

WIDE_BAR = 0.25
"""Share of the wall from which on a bar's text fits into it."""


@dataclass(frozen=True)
class Difference:
    """A row of a picture of differences. `sign`: +1, −1 where it is proven, 0 where it can be luck;
    whether up is good is the reader's to know."""

    label: str
    estimate: Estimate
    sign: int


def differences(rows: Sequence[Difference], unit: str, scale: float = 100.0) -> Markup:
    """Differences to the reference as dots with 95 % intervals, around a line at zero."""
    figure, axes = drawing.make_figure(drawing.WIDE_WIDTH, 0.75 + ROW_HEIGHT * len(rows))
    axes.axvline(0, color=MUTED, linewidth=1)
    for y, row in enumerate(rows):
        colour = {1: GREEN, -1: RED, 0: MUTED}[row.sign]
        value, interval = scale * row.estimate.value, row.estimate.interval
        if interval is not None:
            axes.plot([scale * interval.low, scale * interval.high], [y, y], color=colour, lw=2)
        axes.plot([value], [y], "o", color=colour, markersize=5)
    _rows(axes, [row.label for row in rows])
    axes.set_xlabel(unit)
    axes.grid(axis="x")
    return drawing.as_svg(figure, f"Differences with 95 % intervals, {unit}")


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name the rows, the first on top."""
    axes.set_yticks(range(len(labels)), [_label(text) for text in labels], color=INK)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _label(text: str) -> str:
    text = visible(text).replace("\n", " ")
    # ids differ at their end, so the end is what has to stay
    return text if len(text) <= LABEL_CHARS else "…" + text[1 - LABEL_CHARS :]


def waterfall(wall: WallTime) -> Markup:
    """Each part begins where the one before ended; the last ends at the whole wall."""
    figure, axes = drawing.make_figure(drawing.WIDE_WIDTH, 0.6 + ROW_HEIGHT * len(wall.parts))
    began = 0.0
    for y, part in enumerate(wall.parts):
        axes.barh(y, part.seconds / 60, left=began / 60, height=0.62, color=BLUE)
        _bar_text(axes, y, began, part, wall.wall)
        began += part.seconds
    _rows(axes, [part.name for part in wall.parts])
    axes.set_xlim(0, 1.02 * wall.wall / 60)
    axes.set_xlabel("minutes")
    axes.grid(axis="x")
    return drawing.as_svg(figure, "Wall time by part")


def _bar_text(axes: Axes, y: int, began: float, part: Part, wall: float) -> None:
    """What a bar is, inside it where it is wide, else on the side with more room."""
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
    (StopReason.ENV_DONE, MUTED),
)


def endings(stops: Mapping[str, Mapping[str, int]]) -> Markup:
    """Why attempts ended, as shares of each arm's attempts."""
    present = [(r, c) for r, c in ENDINGS if any(s.get(r.value) for s in stops.values())]
    figure, axes = drawing.make_figure(drawing.WIDE_WIDTH, 0.9 + ROW_HEIGHT * len(stops))
    begun = [0.0] * len(stops)
    totals = [max(1, sum(counts.values())) for counts in stops.values()]
    for reason, colour in present:
        pairs = zip(stops.values(), totals, strict=True)
        shares = [100 * counts.get(reason.value, 0) / total for counts, total in pairs]
        axes.barh(range(len(stops)), shares, left=begun, height=0.62, color=colour, label=reason)
        begun = [a + b for a, b in zip(begun, shares, strict=True)]
    _rows(axes, list(stops))
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of attempts")
    figure.legend(loc="outside upper center", ncols=3)
    return drawing.as_svg(figure, "Why attempts ended")


SIGNAL_MARKS = (
    (Signal.LEARNABLE, "s", GREEN),
    (Signal.SATURATED, "o", BLUE),
    (Signal.STUCK, "x", ORANGE),
)


def pool_history(history: PoolHistory, tasks: Sequence[str]) -> Markup | None:
    """Each time a task was drawn: what its group could teach. None where nothing was drawn."""
    seen = history.by_task()
    rows = [t for t in tasks if t in seen][:POOL_ROWS]
    if not rows:
        return None
    figure, axes = drawing.make_figure(drawing.WIDE_WIDTH, 0.9 + 0.18 * len(rows))
    for signal, mark, colour in SIGNAL_MARKS:
        points = [(s, y) for y, t in enumerate(rows) for s, found in seen[t] if found is signal]
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            linestyle="",
            marker=mark,
            markersize=5,
            color=colour,
            label=signal.value.lower(),
        )
    _rows(axes, rows)
    axes.tick_params(axis="y", labelsize=7.5)
    axes.grid(axis="y", color=GRID, linewidth=0.4)
    drawing.whole_steps(axes)
    figure.legend(loc="outside upper center", ncols=3)
    return drawing.as_svg(figure, "What each task of the pool could teach, by step")
