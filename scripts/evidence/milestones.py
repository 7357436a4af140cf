"""Milestones: the steps at which a goal was first reached.

They come from the step summaries alone. A step's figures are those of its rollouts, which the
adapter of the previous step played. Nothing is tested here: the evidence has the gain of the last
steps on held-out tasks, with intervals.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated

from pydantic import Field

from fieldkit.records import StepSummary
from scripts.evidence.step_figures import (
    PASSES,
    REWARD,
    STOPS,
    TURNS,
    StepFigure,
    by_step,
    environments,
    in_env,
)

MOST = 0.9
"""Share of the whole gain that counts as most of it."""


def window(n_steps: int) -> int:
    """Steps in a trailing mean, and in the means at both ends of a night: a tenth of those played,
    but at least 3, because one step is noisy."""
    return max(3, n_steps // 10)


@dataclass(frozen=True)
class Gain:
    """The change of one figure over the night, as trailing means, and when most of it was done."""

    figure: str
    first: float
    last: float
    most_by_step: int | None
    """First step by which at least `MOST` of the change was there; None without a change."""
    last_third: float
    """Change over the last third of the steps."""


@dataclass(frozen=True)
class Milestones:
    """The milestones of a run. None: never reached."""

    n_steps: int
    stops_90: int | None
    stops_100: int | None
    lowest_turns_step: int | None
    lowest_turns: float | None
    gains: tuple[Gain, ...]
    sentences: tuple[str, ...]
    by_environment: Annotated[
        dict[str, tuple[Gain, ...]], Field(exclude_if=lambda gains: not gains)
    ] = field(default_factory=dict)
    """The gains of each environment; empty in a run with one."""


def milestones(
    steps: Sequence[StepSummary], paid_alike: bool = True, proven: Container[str] | None = ()
) -> Milestones:
    """Find the milestones among the steps with rollouts (step-000 has none).

    paid_alike: false where `reward.schedule` changes what the same work is paid, so that the reward
    has no gain. proven: keys of the figures whose trend is beyond luck; of others no sentence says
    when they moved. None: no trend is one of the policy, because the draw moves.
    """
    moved = [figure for figure in MOVED if paid_alike or figure is not REWARD]
    played = [s for s in steps if s.stop_rate is not None and s.mean_turns is not None]
    lowest = min(played, key=lambda s: (s.mean_turns or 0.0, s.step), default=None)
    found = Milestones(
        n_steps=len(played),
        stops_90=_first(played, 0.9),
        stops_100=_first(played, 1.0),
        lowest_turns_step=lowest.step if lowest else None,
        lowest_turns=lowest.mean_turns if lowest else None,
        gains=_gains(played, moved),
        sentences=(),
        by_environment={
            env: gains
            for env in environments(played)
            if (gains := _gains(played, [in_env(figure, env) for figure in moved]))
        },
    )
    first = played[0].step if played else None
    return replace(found, sentences=tuple(_sentences(found, first, paid_alike, proven)))


def _first(steps: Sequence[StepSummary], rate: float) -> int | None:
    return next((s.step for s in steps if (s.stop_rate or 0.0) >= rate), None)


MOVED = (STOPS, TURNS, REWARD, PASSES)
"""The figures whose gain over the night is shown."""


def _gains(steps: Sequence[StepSummary], figures: Sequence[StepFigure]) -> tuple[Gain, ...]:
    of_each = {_name(figure): by_step(steps, figure) for figure in figures}
    return tuple(
        _gain(f, values) for f, values in of_each.items() if len(values) > window(len(values))
    )


def _name(figure: StepFigure) -> str:
    return figure.key.replace("_", " ")


def _gain(figure: str, values: Sequence[tuple[int, float]]) -> Gain:
    numbers, raw = [n for n, _ in values], [v for _, v in values]
    width = window(len(raw))
    smooth = [fmean(raw[i : i + width]) for i in range(len(raw) - width + 1)]
    numbers = numbers[width - 1 :]
    third = smooth[-1 - len(smooth) // 3]
    return Gain(
        figure=figure,
        first=smooth[0],
        last=smooth[-1],
        most_by_step=_most_by(numbers, smooth),
        last_third=smooth[-1] - third,
    )


def _most_by(numbers: Sequence[int], smooth: Sequence[float]) -> int | None:
    change = smooth[-1] - smooth[0]
    if change == 0:
        return None
    both = zip(numbers, smooth, strict=True)
    return next(n for n, value in both if (value - smooth[0]) / change >= MOST)


def _sentences(
    found: Milestones, first_step: int | None, paid_alike: bool, proven: Container[str] | None
) -> list[str]:
    """Of stops and turns; of the reward where the first step stopped by itself already."""
    if not found.n_steps:
        return ["There is no finished step to read."]
    if found.stops_90 == first_step and not paid_alike:
        return ["The steps' mean rewards do not compare: reward.schedule changes what is paid."]
    if found.stops_90 == first_step and proven is None:
        return ["The steps' mean rewards do not compare: the draw moves on to other tasks."]
    if found.stops_90 == first_step:
        rose = _dated(found, REWARD, "rise in reward") if REWARD.key in (proven or ()) else []
        return rose or ["No rise of the steps' mean reward can be told from luck."]
    return [
        _reached("90 %", found.stops_90),
        _reached("100 %", found.stops_100),
        f"Fewest turns in training: {found.lowest_turns:.2f} on average, in step"
        f" {found.lowest_turns_step}.",
        *(_dated(found, TURNS, "fall in turns", down=True) if TURNS.key in (proven or ()) else []),
    ]


def _dated(found: Milestones, of: StepFigure, change: str, *, down: bool = False) -> list[str]:
    """When most of a change was there; empty where the figure went the other way, or nowhere."""
    gain = next((g for g in found.gains if g.figure == _name(of)), None)
    if gain is None or gain.most_by_step is None or (gain.last < gain.first) != down:
        return []
    return [f"Nine tenths of the {change} were there by step {gain.most_by_step}."]


def _reached(what: str, step: int | None) -> str:
    if step is None:
        return f"In no step of training did {what} of the attempts end by themselves."
    return (
        f"In training {what} of the attempts ended by themselves in step {step} for the first time."
    )
