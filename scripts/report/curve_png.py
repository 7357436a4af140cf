"""The learning curve of a night as one picture: behaviour, turns, and what moved the policy.

Made from the step summaries alone, small enough to be committed. A step's figures are those of its
rollouts at the training temperature, not of the held-out set.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_bytes
from fieldkit.records import StepSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (9.0, 8.4)
DPI = 100
COLOURS = 64

MANY_STEPS = 60
"""Beyond this many, marks hide the line."""

# Okabe and Ito's palette: told apart by colour-blind eyes and in grey.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"

Read = Callable[[StepSummary], float | None]


def write_curve(path: Path, steps: Sequence[StepSummary], title: str) -> None:
    """Write the picture as PNG, under 150 KB. Raises `BadInput` where no step was played."""
    played = [s for s in steps if s.mean_turns is not None]
    if not played:
        raise BadInput("there is no step to draw: the night has not played any rollout yet")
    write_bytes(path, _png(_figure(played, title)))


def _figure(steps: Sequence[StepSummary], title: str) -> Figure:
    # Figure without pyplot: no display, no state shared with whoever else draws.
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    figure.suptitle(title, fontsize=13)
    behaviour, turns, policy = figure.subplots(3, 1, sharex=True)
    _behaviour(behaviour, steps)
    _turns(turns, steps)
    _policy(policy, steps)
    policy.set_xlabel("step")
    _whole_steps(policy)
    return figure


def _behaviour(axes: Axes, steps: Sequence[StepSummary]) -> None:
    _line(axes, steps, lambda s: _percent(s.stop_rate), BLUE, "o", "stops by itself")
    _line(axes, steps, lambda s: _percent(s.pass_rate), ORANGE, "s", "passes")
    _line(axes, steps, lambda s: _percent(s.assertion_rate), GREEN, "^", "assertions that hold")
    axes.set_ylim(-3, 103)
    _label(axes, "% of rollouts", (0, 100))


def _turns(axes: Axes, steps: Sequence[StepSummary]) -> None:
    _line(axes, steps, lambda s: s.mean_turns, BLUE, "o", "mean turns")
    axes.set_ylim(bottom=0)
    _label(axes, "turns an episode", None)


def _policy(axes: Axes, steps: Sequence[StepSummary]) -> None:
    _line(axes, steps, lambda s: s.mean_reward, GREEN, "o", "mean reward (left)")
    axes.set_ylabel("reward")
    right = axes.twinx()
    _line(right, steps, lambda s: s.train.get("kl"), VERMILLION, "s", "KL to the start (right)")
    right.set_ylabel("KL, nats a token")
    right.set_ylim(bottom=0)
    right.spines["top"].set_visible(False)
    axes.spines["top"].set_visible(False)
    axes.grid(alpha=0.3)
    handles = [*axes.get_lines(), *right.get_lines()]
    axes.legend(handles=handles, loc="best", fontsize=9)


def _line(
    axes: Axes, steps: Sequence[StepSummary], read: Read, colour: str, marker: str, label: str
) -> None:
    points = [(s.step, v) for s in steps if (v := read(s)) is not None]
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=colour,
        marker=marker if len(points) <= MANY_STEPS else None,
        markersize=4,
        linewidth=1.6 if len(points) <= MANY_STEPS else 1.0,
        label=label,
    )


def _label(axes: Axes, text: str, limits: tuple[float, float] | None) -> None:
    axes.set_ylabel(text)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="best", fontsize=9)
    if limits:
        axes.set_yticks([limits[0], 25, 50, 75, limits[1]])


def _whole_steps(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _percent(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate


def _png(figure: Figure) -> bytes:
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    picture = Image.fromarray(pixels).convert("RGB")
    # a few flat colours and their edges: a palette is a third of the size and looks the same
    out = io.BytesIO()
    picture.quantize(colors=COLOURS, method=Image.Quantize.MEDIANCUT).save(
        out, "PNG", optimize=True
    )
    return out.getvalue()
