"""What the software makes of a device, fitted to steps that were measured.

The fit minimises the sum of absolute relative errors, because a machine that somebody else uses for
a while is only ever slower: a median does not follow such steps. Steps whose work is only
estimated are not fitted; they are what the fit is tried on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean, median

from fieldkit.errors import BadInput
from scripts.prepare.capacity.box import GIGA, Box, named_box
from scripts.prepare.capacity.measured import (
    FITTED_BOX,
    TABLE,
    MeasuredRun,
    MeasuredStep,
    measured_runs,
)
from scripts.prepare.capacity.model_shape import ModelShape
from scripts.prepare.capacity.step_time import Efficiency, iterations, pass_seconds, rollout_seconds

SHARES = tuple(n / 200 for n in range(10, 201))
"""Shares of the FLOP/s limit that are tried for the engine, 0.05 to 1."""


@dataclass(frozen=True)
class Fit:
    """efficiency: of the software. iteration_ms: of the box that was measured."""

    efficiency: Efficiency
    iteration_ms: float


@dataclass(frozen=True)
class Error:
    """Of predictions over measured seconds: median and mean of the absolute relative error, and the
    largest one, all as shares; of the mean the sign too (below 0: predicted too fast)."""

    n: int
    median: float
    mean: float
    worst: float
    bias: float


@dataclass(frozen=True)
class Doubt:
    """Why a prediction is not to be trusted: measured steps like the predicted ones, and how far
    off theirs are. run, model: names. box: its title. step: the error of a step's seconds."""

    run: str
    model: str
    box: str
    step: Error


# --- the fit --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A measured step with what it was measured on. box: with an engine that takes no time of its
    own, because that is fitted."""

    step: MeasuredStep
    shape: ModelShape
    box: Box
    seats: int

    @property
    def iterations(self) -> float:
        """Of the engine (`rollout_seconds`)."""
        return iterations(self.step.work, self.step.work.sampled, self.seats)

    @cached_property
    def bare(self) -> tuple[float, ...]:
        """Seconds of its rollout at each of `SHARES`, without the engine's own time."""
        return tuple(map(self._rollout, SHARES))

    def rollout(self, share: float, iteration: float) -> float:
        """Predicted seconds of its rollout."""
        return self._rollout(share) + iteration * self.iterations

    def _rollout(self, share: float) -> float:
        efficiency = Efficiency(share, 1.0, 1.0, 0.0, 0.0, 0.0)
        return sum(rollout_seconds(self.step.work, self.shape, self.box, efficiency, self.seats))


def _rows(runs: Sequence[MeasuredRun]) -> list[_Row]:
    found = []
    for run in runs:
        shape, box = run.shape, replace(named_box(run.box), iteration_ms=0.0)
        if run.tflops is not None:
            box = replace(box, tflops=run.tflops)
        found += [_Row(step, shape, box, run.seats) for step in run.steps]
    return found


def fit(runs: Sequence[MeasuredRun]) -> Fit:
    """The efficiencies that fit the exact ones among `runs` best. Raises `BadInput` where a part
    was never measured."""
    return _fit(_rows([run for run in runs if run.is_fitted]), _trainer_seconds(runs))


def _trainer_seconds(runs: Sequence[MeasuredRun]) -> float:
    """A trainer's start and imports in the median step that had them: of all runs on the fitted
    box, because they depend on no work."""
    loads = [
        row.step.trainer_load - row.shape.weight_bytes / (row.box.disk_gb_s * GIGA)
        for row in _rows([run for run in runs if run.box == FITTED_BOX])
        if row.step.trainer_load is not None
    ]
    return max(0.0, _median(loads, "trainer_load"))


def _fit(rows: Sequence[_Row], trainer_seconds: float) -> Fit:
    reference = _share(rows, "reference", ModelShape.forward_flops)
    gradient = _share(rows, "gradient", ModelShape.gradient_flops)
    engine, iteration = _engine(rows)
    canary = [
        row.step.canary * row.box.flops * reference / row.shape.forward_flops(1, 1)
        for row in rows
        if row.step.canary is not None
    ]
    fixed = [row.step.fixed for row in rows if row.step.fixed is not None]
    return Fit(
        Efficiency(
            engine=engine,
            reference=reference,
            gradient=gradient,
            canary_tokens=_median(canary, "canary"),
            fixed=_median(fixed, "fixed"),
            trainer_seconds=trainer_seconds,
        ),
        1000 * iteration,
    )


def _median(values: Sequence[float], part: str) -> float:
    if not values:
        raise BadInput(
            f"{TABLE}: no step in it has {part}; `python -m scripts.prepare.capacity.measured"
            " RUN` writes it from runs, of which one has its bundles"
        )
    return median(values)


def _share(
    rows: Sequence[_Row], part: str, flops: Callable[[ModelShape, float, float], float]
) -> float:
    """The share of the limit that a pass reached, in the median step."""
    reached = [
        flops(row.shape, row.step.work.inputs, row.step.work.scored) / (seconds * row.box.flops)
        for row in rows
        if (seconds := row.step.seconds(part))
    ]
    return _median(reached, part)


def _engine(rows: Sequence[_Row]) -> tuple[float, float]:
    """The engine's share of the limit, and its own seconds for each decode iteration."""
    played = [row for row in rows if row.step.rollout]
    if not played:
        _median([], "rollout")
    _, iteration, share = min((*_iteration(played, i), share) for i, share in enumerate(SHARES))
    return share, iteration


def _iteration(rows: Sequence[_Row], i: int) -> tuple[float, float]:
    """The sum of absolute relative errors at a share, and the seconds of an iteration that make it
    smallest: a weighted median of those that each step alone asks for."""
    found = [(row.step.rollout or 0.0, row.bare[i], row.iterations) for row in rows]
    wanted = sorted(((y - bare) / n, n / y) for y, bare, n in found)
    below = itertools.accumulate(weight for _, weight in wanted)
    half = sum(weight for _, weight in wanted) / 2
    iteration = max(0.0, next(s for (s, _), w in zip(wanted, below, strict=True) if w >= half))
    return sum(abs(bare + n * iteration - y) / y for y, bare, n in found), iteration


# --- how far off it is ----------------------------------------------------------------------------


def predicted(row: _Row, found: Fit) -> dict[str, float]:
    """Seconds of a measured step by part, as `MeasuredStep.seconds` names them."""
    e, work = found.efficiency, row.step.work
    reference, gradient, canary = pass_seconds(row.shape, row.box, e, work.inputs, work.scored)
    seconds = {
        "rollout": row.rollout(e.engine, found.iteration_ms / 1000) if work.sampled else 0.0,
        "reference": reference,
        "gradient": gradient,
    }
    return {**seconds, "step": sum(seconds.values()) + canary + e.fixed}


def left_out(runs: Sequence[MeasuredRun]) -> dict[str, Error]:
    """Leave one out: each step of the exact runs as fitted to all the others, by part."""
    rows = _rows([run for run in runs if run.is_fitted])
    load = _trainer_seconds(runs)
    fits = [_fit([*rows[:i], *rows[i + 1 :]], load) for i in range(len(rows))]
    return _errors(rows, fits)


@cache
def stored_fit() -> tuple[Fit, Mapping[str, Error]]:
    """The fit to the stored measurements and its errors, made once for a process."""
    runs = measured_runs()
    return fit(runs), left_out(runs)


def tried_on(run: MeasuredRun, found: Fit) -> dict[str, Error]:
    """How far the fit is off on a run that it was not fitted to, by part. On another box the engine
    has that box's own time."""
    if run.box != FITTED_BOX:
        found = replace(found, iteration_ms=named_box(run.box).iteration_ms)
    rows = _rows([run])
    return _errors(rows, [found] * len(rows))


SMALL = 1e9
"""Weights below which a model is small. Steps on a GPU were measured of one with 0.13e9, which are
predicted far too short, and of one with 7.6e9, which are not; of none between these."""


def doubt(shape: ModelShape, box: Box) -> Doubt | None:
    """What is known against predictions for this model on this box: those of a small model on a
    GPU are not to be trusted. None where nothing is known."""

    def is_doubtful(shape: ModelShape, box: Box) -> bool:
        return box.is_gpu and shape.parameters < SMALL

    found, _ = stored_fit()
    for run in measured_runs() if is_doubtful(shape, box) else ():
        played_on = named_box(run.box)
        if is_doubtful(run.shape, played_on):
            return Doubt(run.name, run.model, played_on.title, tried_on(run, found)["step"])
    return None


def _errors(rows: Sequence[_Row], fits: Sequence[Fit]) -> dict[str, Error]:
    off: dict[str, list[float]] = {}
    for row, found in zip(rows, fits, strict=True):
        for part, seconds in predicted(row, found).items():
            if measured := row.step.seconds(part):
                off.setdefault(part, []).append(seconds / measured - 1)
    return {part: _error(values) for part, values in off.items()}


def _error(off: Sequence[float]) -> Error:
    size = [abs(value) for value in off]
    return Error(len(off), median(size), fmean(size), max(size), fmean(off))
