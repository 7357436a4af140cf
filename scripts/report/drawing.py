"""Converts Matplotlib figures to SVG that takes its colours, fonts and width from the page.

Figures are drawn in placeholder colours, which become CSS variables, so one chart serves the light
and the dark scheme and print. Text stays text.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from markupsafe import Markup, escape

from fieldkit.records import Signal, StepSummary
from scripts.evidence.step_figures import StepFigure, by_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

# Placeholder colours, used nowhere else. The page's style sheet gives each its two values.
INK, MUTED, GRID = "#010203", "#040506", "#070809"
BLUE, ORANGE, GREEN, RED = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
PAPER, PURPLE = "#0a0b05", "#0a0b06"
BAND_LEARNABLE, BAND_SATURATED, BAND_STUCK = "#0a0b07", "#0a0b08", "#0a0b09"
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    RED: "--red",
    PAPER: "--paper",
    PURPLE: "--purple",
    BAND_LEARNABLE: "--band-learnable",
    BAND_SATURATED: "--band-saturated",
    BAND_STUCK: "--band-stuck",
}

SIGNAL_COLOURS = {
    Signal.LEARNABLE: BAND_LEARNABLE,
    Signal.SATURATED: BAND_SATURATED,
    Signal.STUCK: BAND_STUCK,
}
"""Colours of bands and marks of groups; no line has one of them."""

SMALL_WIDTH = 4.4
"""Inches of a chart in a row of charts; text sizes are made for it."""

WIDE_WIDTH = 5.6
"""Inches of a chart with a row of its own; its text stays readable on a phone."""

LEFT, BOTTOM, TOP, MARGIN = 0.55, 0.45, 0.25, 0.08
"""Inches around the axes of a chart: numbers of six characters, ticks with a label, a row of a
legend, and nothing."""

LABEL = 0.13
"""Inches from the bottom of a chart to the top of the label below its numbers."""

HALF_NUMBER = 0.15
"""Inches that the number of a tick reaches beyond the axes that end there."""

FONT_SIZE = 9.0

POINTS = 72
"""Points of an inch."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "grpo",
    # Labels come from task files: a dollar sign does not start a formula.
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "font.size": FONT_SIZE,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": FONT_SIZE,
    "lines.linewidth": 1.6,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}

_COLOUR = re.compile("|".join(VARIABLES))
_PREAMBLE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_FONT = re.compile(r"font: ([0-9.]+px) [^;\"]*|font-family: [^;\"]*;? ?")
_COORDINATES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
_FINE = re.compile(r"(\.\d\d)\d+")
_ID = re.compile(r'( id="|href="#|url\(#)')

_numbers = itertools.count()


@contextmanager
def style() -> Iterator[None]:
    """Figures drawn inside have the page's style."""
    import matplotlib

    with matplotlib.rc_context(rc=cast(Any, _STYLE)):
        yield


def make_rows(
    labels: Sequence[str], height: float, *, legend: int = 0, size: float = FONT_SIZE
) -> tuple[Figure, Axes]:
    """Make a figure as wide as the page whose axes have a row for each label, the first at the top,
    as much room for the labels as the longest takes, and room for so many lines of a legend.

    Nothing has to be laid out: that costs three times what drawing a hundred rows does.
    """
    from matplotlib import rcParams

    figure, axes = _make(WIDE_WIDTH, height)
    longest = _longest(labels, size) + rcParams["ytick.major.pad"] / POINTS
    figure.subplots_adjust(
        left=min(MARGIN + longest, WIDE_WIDTH - 1) / WIDE_WIDTH,
        right=1 - HALF_NUMBER / WIDE_WIDTH,
        bottom=BOTTOM / height,
        top=1 - (TOP * legend or MARGIN) / height,
    )
    axes.set_yticks(range(len(labels)), labels, color=INK, fontsize=size)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure, axes


def _longest(texts: Sequence[str], size: float) -> float:
    """Inches of the longest text."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    measure, font = text_to_path.get_text_width_height_descent, FontProperties(size=size)
    with _any_glyph():
        return max((measure(text, font, False)[0] for text in texts), default=0.0) / POINTS


@contextmanager
def _any_glyph() -> Iterator[None]:
    """Texts may have glyphs that Matplotlib's font lacks: the browser draws with its own fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def make_small(height: float) -> tuple[Figure, Axes]:
    """Make a figure for a row of charts, with the same room for labels in each: so their axes stand
    in line, and none has to be laid out, which costs as much as drawing it."""
    figure, axes = _make(SMALL_WIDTH, height)
    figure.subplots_adjust(
        left=LEFT / SMALL_WIDTH,
        right=1 - MARGIN / SMALL_WIDTH,
        bottom=BOTTOM / height,
        top=1 - TOP / height,
    )
    return figure, axes


def _make(width: float, height: float) -> tuple[Figure, Axes]:
    # Without pyplot: it needs a display and shares state between figures.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    # Where they would stand anyway: else each asks how far all numbers of its axis reach.
    axes.xaxis.set_label_coords(0.5, LABEL / height, _across(figure, axes))
    axes.yaxis.set_label_coords(0.0, 0.5)  # no chart of the page has one
    return figure, axes


def _across(figure: Figure, axes: Axes) -> Transform:
    """Shares of the axes' width and of the figure's height."""
    from matplotlib.transforms import blended_transform_factory

    return blended_transform_factory(axes.transAxes, figure.transFigure)


def draw_figure(
    axes: Axes,
    steps: Sequence[StepSummary],
    figure: StepFigure,
    colour: str,
    label: str,
    mark: str = "o",
    *,
    few: int,
    mark_size: float,
    thin: float,
) -> None:
    """Draw a step figure as a line, in its curve's unit. With more than `few` points the line has
    no marks, which would hide it, and the width `thin`."""
    points = by_step(steps, figure)
    marked = len(points) <= few
    axes.plot(
        [x for x, _ in points],
        [figure.scale * y for _, y in points],
        color=colour,
        marker=mark if marked else None,
        markersize=mark_size,
        linewidth=_STYLE["lines.linewidth"] if marked else thin,
        label=label,
    )


def whole_steps(axes: Axes, most: int = 10) -> None:
    """Label the axis of steps with whole numbers, at most `most` of them."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step")
    # One tick suffices: a night of a single step would else get ticks between whole numbers.
    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def as_svg(figure: Figure, label: str) -> Markup:
    """Convert the figure to an <svg> element. label: text for screen readers."""
    out = io.StringIO()
    with _any_glyph():
        figure.savefig(out, format="svg", transparent=True, metadata=_NO_METADATA)
    text = _METADATA.sub("", _PREAMBLE.sub("", out.getvalue(), count=1))
    text = _COLOUR.sub(lambda m: f"var({VARIABLES[m.group()]})", text)
    text = _FONT.sub(lambda m: f"font-size: {m.group(1)}" if m.group(1) else "", text)
    # Digits beyond a hundredth of a point are invisible and half of the file.
    text = _COORDINATES.sub(lambda m: _FINE.sub(r"\1", m.group()), text)
    # Several charts share a page, so ids must be unique.
    text = _ID.sub(rf"\g<1>c{next(_numbers)}-", text)
    return Markup(_fluid(text, label))


def _fluid(svg: str, label: str) -> str:
    """Let the chart fill the page's width, and add its label."""
    head, rest = svg.split(">", 1)
    for attribute in ("width", "height"):
        head = re.sub(rf' {attribute}="[^"]*"', "", head, count=1)
    return f'{head} role="img" aria-label="{escape(label)}">{rest}'
