"""What a run's steps would take elsewhere: its work, a model's shape and the fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scripts.prepare.capacity.advice import Case, Prediction, predict
from scripts.prepare.capacity.box import Box
from scripts.prepare.capacity.fitting import Fit, stored_fit
from scripts.prepare.capacity.measured import (
    FIXED,
    MeasuredStep,
    default_night,
    measured_runs,
    seats_of,
)
from scripts.prepare.capacity.model_shape import ModelShape, named_shape, shape_of_folder
from scripts.prepare.capacity.step_time import Way
from scripts.prepare.capacity.step_work import (
    LATE,
    StepWork,
    first_and_late,
    manifest_of,
    mean_work,
    named,
    work_of,
)
from scripts.run.reader import RunReader

RANK = 16
"""Of the LoRA of another model than the run's, on all its linear layers."""


@dataclass(frozen=True)
class Elsewhere:
    """Some steps' work by name, and what is predicted for it on a box. measured: the seconds that
    they took where they were played, in the parts `rollout`, `training`, `load` and `rest`."""

    name: str
    machine: str
    works: Mapping[str, StepWork]
    shape: ModelShape
    way: Way
    fit: Fit
    measured: Mapping[str, Mapping[str, float]]

    def cases(self, box: Box, attempts: int | None = None) -> dict[str, Case]:
        """Each work on a box, by its name. attempts: of a step, each with a seat in the engine;
        None: as played."""
        found = {
            name: Case(work, self.shape, box, self.fit.efficiency, self.way)
            for name, work in self.works.items()
        }
        if attempts is None:
            return found
        return {name: case.with_attempts(attempts) for name, case in found.items()}

    def on(self, box: Box, attempts: int | None = None) -> dict[str, Prediction]:
        """The predictions for a box, by the work's name."""
        return {name: predict(case) for name, case in self.cases(box, attempts).items()}


def of_run(reader: RunReader, model: str | None = None) -> Elsewhere:
    """The first and late steps of a run that was played, on its model or another one.

    Raises `BadInput` where no step has trained, and for a model that is not known.
    """
    steps = first_and_late(reader)
    manifest = manifest_of(reader)
    config, machine = manifest["config"], manifest["hardware"]
    shape = shape_of_folder(manifest["model"]["dir"]) if model is None else named_shape(model)
    trained = next(s.train for s in reader.steps if s.train)
    own = model is None and "trainable_parameters" in trained
    lora = int(trained["trainable_parameters"]) if own else shape.lora_parameters(RANK)
    return Elsewhere(
        name=reader.folder.name,
        machine=", ".join(machine["gpus"]) or f"{machine['cores']} cores of {machine['cpu']}",
        works={name: mean_work([work_of(reader, n) for n in ns]) for name, ns in steps.items()},
        shape=shape,
        way=Way(seats_of(config), lora_parameters=lora),
        fit=stored_fit()[0],
        measured={name: _mean_seconds(reader, ns) for name, ns in steps.items()},
    )


def _mean_seconds(reader: RunReader, steps: Sequence[int]) -> dict[str, float]:
    """Of a mean step, by part."""
    taken = [reader.step(n).seconds for n in steps]

    def mean(*names: str) -> float:
        return fmean(sum(seconds.get(name, 0.0) for name in names) for seconds in taken)

    parts = {
        "rollout": mean("rollout"),
        "training": mean("reference", "gradient"),
        "load": mean("trainer_start", "trainer_load"),
    }
    return {**parts, "rest": mean(*FIXED, "canary")}


def of_default(model: str | None = None) -> Elsewhere:
    """The first and late steps of the night in measured.json, where no run is named."""
    runs = measured_runs()
    night = default_night(runs)
    shape = named_shape(model or night.model)
    parts = (night.steps[:1], night.steps[-LATE:])
    chosen = {named([s.step for s in steps]): steps for steps in parts}
    return Elsewhere(
        name=night.name,
        machine=night.told,
        works={name: mean_work([s.work for s in steps]) for name, steps in chosen.items()},
        shape=shape,
        way=Way(night.seats, lora_parameters=shape.lora_parameters(RANK)),
        fit=stored_fit()[0],
        measured={name: _mean_of(steps) for name, steps in chosen.items()},
    )


def _mean_of(steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """The mean seconds of measured steps, by part."""

    def mean(*names: str) -> float:
        return fmean(sum(step.seconds(name) or 0.0 for name in names) for step in steps)

    parts = {"rollout": mean("rollout"), "training": mean("reference", "gradient")}
    return {**parts, "load": mean("trainer_load"), "rest": mean("fixed", "canary")}
