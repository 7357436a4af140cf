"""curve.png: the learning curve of a night in one picture: behaviour, turns, reward and KL.

It is made from the step summaries alone and small enough to commit. A step's figures are those of
its rollouts at the training temperature, not of the held-out tasks.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_bytes
from fieldkit.records import StepSummary
from scripts.evidence.step_figures import ASSERTIONS, KL, PASSES, REWARD, STOPS, TURNS
from scripts.report.drawing import draw_figure, whole_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (9.0, 8.4)
DPI = 100
COLOURS = 64

MANY_STEPS = 60
"""With more steps, marks would hide the line."""

# Okabe and Ito's palette: distinct to colour-blind readers and in grey.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"

_line = partial(draw_figure, few=MANY_STEPS, mark_size=4, thin=1.0)


def write_curve(path: Path, steps: Sequence[StepSummary], title: str) -> Path:
    """Write the picture as a PNG of less than 150 KB; return its path.

    Raises `BadInput` if no step was played.
    """
    played = [s for s in steps if s.mean_turns is not None]
    if not played:
        raise BadInput("there is no step to draw: the night has not played any rollout yet")
    write_bytes(path, _png(_figure(played, title)))
    return path


def _figure(steps: Sequence[StepSummary], title: str) -> Figure:
    # Without pyplot: it needs a display and shares state between figures.
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    figure.suptitle(title, fontsize=13)
    behaviour, turns, policy = figure.subplots(3, 1, sharex=True)
    _behaviour(behaviour, steps)
    _turns(turns, steps)
    _policy(policy, steps)
    whole_steps(policy)
    return figure


def _behaviour(axes: Axes, steps: Sequence[StepSummary]) -> None:
    for figure, colour, mark in (
        (STOPS, BLUE, "o"),
        (PASSES, ORANGE, "s"),
        (ASSERTIONS, GREEN, "^"),
    ):
        _line(axes, steps, figure, colour, figure.name.lower(), mark)
    axes.set_ylim(-3, 103)
    _label(axes, "%")
    axes.set_yticks([0, 25, 50, 75, 100])


def _turns(axes: Axes, steps: Sequence[StepSummary]) -> None:
    _line(axes, steps, TURNS, BLUE, f"mean {TURNS.symbol}")
    axes.set_ylim(bottom=0)
    _label(axes, f"{TURNS.symbol} {TURNS.unit}")


def _policy(axes: Axes, steps: Sequence[StepSummary]) -> None:
    _line(axes, steps, REWARD, GREEN, f"mean {REWARD.symbol} (left)")
    right = axes.twinx()
    _line(right, steps, KL, VERMILLION, f"{KL.name} (right)", "s")
    right.set_ylabel(f"{KL.symbol}, {KL.unit}")
    right.set_ylim(bottom=0)
    right.spines["top"].set_visible(False)
    axes.spines["top"].set_visible(False)
    axes.set_ylabel(REWARD.symbol)
    axes.grid(alpha=0.3)
    axes.legend(handles=[*axes.get_lines(), *right.get_lines()], loc="best", fontsize=9)


def _label(axes: Axes, text: str) -> None:
    axes.set_ylabel(text)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="best", fontsize=9)


def _png(figure: Figure) -> bytes:
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    picture = Image.fromarray(pixels).convert("RGB")
    # The picture has few colours: with a palette it looks the same at a third of the size.
    out = io.BytesIO()
    picture.quantize(colors=COLOURS, method=Image.Quantize.MEDIANCUT).save(
        out, "PNG", optimize=True
    )
    return out.getvalue()
