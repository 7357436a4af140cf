"""The curves of a night by step: one small chart per figure.

A line shows the figures of the rollouts and of training; a dot with a bar shows an adapter on the
held-out tasks with its interval. Rollouts and evaluations use different temperatures, so line and
dots need not coincide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from markupsafe import Markup

from fieldkit.eval.matched import ArmRow
from fieldkit.eval.stats import Estimate
from fieldkit.records import StepSummary
from scripts.evidence.collect import Evidence
from scripts.evidence.played import WARM_START, step_name
from scripts.evidence.step_figures import (
    CLIPPED,
    HELD_BACK,
    KL,
    STOPS,
    STOPS_DONE,
    StepFigure,
    curves,
)
from scripts.report import drawing
from scripts.report.drawing import (
    BLUE,
    GREEN,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SIGNAL_COLOURS,
    draw_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 2.1
"""Inches of one small chart."""

ROOM = 1.06
"""Height of the axes over the highest value, so that a line at the top is not cut off."""

FLAT_TOP = 1.0
"""Height of the axes if all values are zero."""

FEW_STEPS = 40
"""Up to this many steps, each step has a mark, and its groups are bars."""

_line = partial(draw_figure, few=FEW_STEPS, mark_size=3.5, thin=1.1)
GROUPS = "Groups by signal"

MEANINGS = {
    "Reward": "What an attempt earns, as the run pays it.",
    STOPS.name: "Attempts that no limit ended: the model said that it is done, or gave its answer.",
    "Passes": "Attempts in which every assertion holds.",
    "Turns": "Replies of the model in an attempt.",
    str(STOPS_DONE.curve): "Attempts that ended by themselves: those with every assertion met, and"
    " those with no more met than at the start.",
    KL.name: "How far the policy has moved from the adapter that the night began with.",
    GROUPS: "A group is the attempts at one task in a step. Learnable: their rewards differ."
    " Saturated: all pass and earn the same. Stuck: all earn the same, and not all pass.",
    "Weight delta of the step": "How far the step moved the weights; as served: after rounding.",
    "Gradient norm": "Size of the step's gradient.",
    "Sampler − trainer": "How much server and trainer differ on the same tokens: rounding.",
    CLIPPED.name: "Tokens whose importance weight reached trainer.tis_cap.",
    HELD_BACK.name: "Tokens whose ratio left the band of trainer.objective in the last pass.",
    "Entropy": "How undecided the policy is at a token; near zero it no longer explores.",
    "Speed": "Tokens that the server samples and the trainer trains on.",
}
"""Heading of a curve → its figure in a sentence."""

FIRST = ("Reward", STOPS.name, "Passes", "Turns", KL.name, GROUPS)
"""The curves to look at first, in order."""

COLOURS = {"blue": BLUE, "orange": ORANGE, "green": GREEN, "red": RED, "muted": MUTED}


@dataclass(frozen=True)
class Drawn:
    """A chart with its heading, and what its figure means."""

    title: str
    unit: str
    svg: Markup = field(repr=False)

    @property
    def meaning(self) -> str:
        return MEANINGS.get(self.title, "")


def draw_curves(steps: Sequence[StepSummary], evidence: Evidence | None) -> tuple[Drawn, ...]:
    """Draw every curve that has data. steps: the steps with rollouts."""
    if not steps:
        return ()
    pictures = [_draw(title, lines, steps, evidence) for title, lines in curves(steps).items()]
    found = [p for p in (*pictures, _draw_groups(steps)) if p is not None]
    order = {title: i for i, title in enumerate(FIRST)}
    return tuple(sorted(found, key=lambda p: order.get(p.title, len(order))))


def _draw(
    title: str,
    lines: Sequence[StepFigure],
    steps: Sequence[StepSummary],
    evidence: Evidence | None,
) -> Drawn | None:
    present = [line for line in lines if any(line.read(s) is not None for s in steps)]
    if not present:
        return None
    picture, axes = drawing.make_small(HEIGHT)
    for line in present:
        _line(axes, steps, line, COLOURS[line.colour], line.line or "rollouts")
    first = lines[0]
    if first.held_out and evidence is not None:
        _dots(axes, _held_out(evidence, steps, first.held_out), first.scale)
    _finish(axes, first.scale if first.is_rate else None)
    return Drawn(title, first.unit, drawing.as_svg(picture, f"{title} by step"))


def _held_out(
    evidence: Evidence, steps: Sequence[StepSummary], read: Callable[[ArmRow], Estimate]
) -> list[tuple[int, Estimate]]:
    """The evaluated adapters by step; the warm start is step 0."""
    step_of = {WARM_START: 0} | {step_name(s.step): s.step for s in steps}
    return [(step_of[arm.name], read(arm)) for arm in evidence.arms if arm.name in step_of]


def _dots(axes: Axes, points: Sequence[tuple[int, Estimate]], scale: float) -> None:
    low = [_reach(e)[0] * scale for _, e in points]
    high = [_reach(e)[1] * scale for _, e in points]
    axes.errorbar(
        [x for x, _ in points],
        [scale * e.value for _, e in points],
        yerr=(low, high),
        fmt="D",
        markersize=4,
        color=PURPLE,
        capsize=2.5,
        linewidth=1.2,
        label="held-out tasks",
    )


def _reach(estimate: Estimate) -> tuple[float, float]:
    """The distances from the value to the ends of its interval; zero without an interval."""
    if estimate.interval is None:
        return 0.0, 0.0
    return (
        max(0.0, estimate.value - estimate.interval.low),
        max(0.0, estimate.interval.high - estimate.value),
    )


def _finish(axes: Axes, top: float | None, legend: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.margins(x=0.03)
    low, high = min(0.0, axes.dataLim.ymin), axes.dataLim.ymax
    if top is not None:
        axes.set_yticks([quarter * top / 4 for quarter in range(5)])
    elif high > 0:
        top = axes.get_ylim()[1]
    else:
        top = 0.0 if low else FLAT_TOP
    # With zero, so that noise looks small; a reward may lie below it.
    axes.set_ylim(low - 0.03 * (top - low), low + ROOM * (top - low))
    drawing.whole_steps(axes, most=6)
    names = axes.get_legend_handles_labels()[1]
    if legend and len(names) > 1:
        axes.legend(loc="best", labelcolor=MUTED, ncols=1 if len(names) == 2 else 2)


def _draw_groups(steps: Sequence[StepSummary]) -> Drawn | None:
    """Groups of each step by signal, stacked."""
    if not any(s.groups for s in steps):
        return None
    figure, axes = drawing.make_small(HEIGHT)
    numbers = [s.step for s in steps]
    counts = [[s.groups.get(signal.value, 0) for s in steps] for signal in SIGNAL_COLOURS]
    if len(steps) > FEW_STEPS:  # hundreds of bars are unreadable and slow to draw
        names = [signal.value.lower() for signal in SIGNAL_COLOURS]
        colours = [*SIGNAL_COLOURS.values()]
        axes.stackplot(numbers, *counts, colors=colours, labels=names, step="mid")
    else:
        _bars(axes, numbers, counts)
    _finish(axes, None, legend=False)
    figure.legend(loc="upper center", ncols=3, labelcolor=MUTED, borderaxespad=0.0)
    return Drawn(GROUPS, "a step", drawing.as_svg(figure, "Groups by signal by step"))


def _bars(axes: Axes, numbers: Sequence[int], counts: Sequence[Sequence[int]]) -> None:
    below = [0] * len(numbers)
    for (signal, colour), heights in zip(SIGNAL_COLOURS.items(), counts, strict=True):
        axes.bar(numbers, heights, bottom=below, color=colour, width=0.8, label=signal.lower())
        below = [a + b for a, b in zip(below, heights, strict=True)]
