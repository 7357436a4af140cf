"""The curves of several nights of each arm: their mean as a line, the nights as faint ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from markupsafe import Markup

from fieldkit.records import StepSummary
from scripts.evidence.step_figures import KL, PASSES, STOPS, TURNS, StepFigure, by_step
from scripts.report import drawing
from scripts.report.drawing import BLUE, GREEN, INK, ORANGE, PURPLE, RED

SHOWN = (PASSES, STOPS, TURNS, KL)

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, INK)
_DASHES = ("-", "--", ":")
"""Each colour comes again with the next one."""

_FAINT = 0.35
_HEIGHT = 2.3


def draw_seed_curves(arms: Mapping[str, Sequence[Sequence[StepSummary]]]) -> list[Markup]:
    """A chart for each figure. arms: the steps of each night, by arm."""
    return [_curve(figure, arms) for figure in SHOWN]


def _curve(figure: StepFigure, arms: Mapping[str, Sequence[Sequence[StepSummary]]]) -> Markup:
    drawn, axes = drawing.make_small(_HEIGHT)
    for i, (name, nights) in enumerate(arms.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        dash = _DASHES[i // len(_COLOURS) % len(_DASHES)]
        of_step: dict[int, list[float]] = defaultdict(list)
        for steps in nights:
            points = by_step(steps, figure)
            for step, value in points:
                of_step[step].append(figure.scale * value)
            if len(nights) > 1:
                own = [figure.scale * y for _, y in points]
                axes.plot([x for x, _ in points], own, colour, lw=0.6, alpha=_FAINT)
        # Beyond the shortest night the mean would be of other nights than before.
        whole = [s for s, values in sorted(of_step.items()) if len(values) == len(nights)]
        axes.plot(whole, [fmean(of_step[s]) for s in whole], colour, linestyle=dash, label=name)
    axes.set_title(f"{figure.name}, {figure.unit}", loc="left", fontsize=drawing.FONT_SIZE)
    axes.grid(axis="y")
    drawing.whole_steps(axes)
    if len(arms) > 1:
        axes.legend()
    return drawing.as_svg(drawn, f"{figure.name} by step, {', '.join(arms)}")
