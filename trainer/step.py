"""One optimizer step: a bundle and an adapter in, a new adapter out.

`train` is the whole of it, from the checks that cost nothing to the files that appear last; the
parts live in their own modules. A bundle without signal is decided before torch is imported.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.adapter import AdapterInfo, check_adapter
from fieldkit.errors import BadInput
from fieldkit.files import sha256_file
from fieldkit.records import Outcome, RolloutGroup, read_bundle
from trainer.batch import TrainingBatch, check_bundle, collect, micro_batches
from trainer.checkpoint import (
    carry_over,
    new_result,
    read_result,
    state_sha,
    state_steps,
    write_marker,
)
from trainer.progress import Progress, Stopwatch
from trainer.report import report_bundle, report_result
from trainer.settings import TrainerSettings


@dataclass(frozen=True)
class StepInputs:
    """The files of one step. `reference` is None only where β is 0; `state` None starts anew."""

    bundle: Path
    adapter: Path
    reference: Path | None
    model_dir: Path
    state: Path | None
    out_dir: Path


@dataclass(frozen=True)
class Checked:
    """The inputs after reading: everything that could be wrong with them has been looked at."""

    groups: tuple[RolloutGroup, ...]
    batch: TrainingBatch
    adapter: AdapterInfo
    reference: AdapterInfo | None
    optimizer_steps: int
    identity: dict[str, Any]
    """What a result is bound to: hashes of all inputs and the settings."""


def train(inputs: StepInputs, settings: TrainerSettings, progress: Progress) -> dict[str, Any]:
    """Do one step and return its train.json. A step that is already done is left as it is.

    Raises `BadInput` before anything is written, `Shortage` where memory does not suffice.
    """
    watch = Stopwatch()
    with watch.phase("read"):
        checked = check_inputs(inputs, settings)
        done = _already_done(inputs.out_dir, checked.identity)
    if done is not None:
        progress.say(f"{inputs.out_dir}: this step is done already")
        return done
    report_bundle(checked.batch, progress)
    with new_result(inputs.out_dir) as build:
        figures: dict[str, Any] = {}
        if checked.batch.has_signal:
            outcome = Outcome.TRAINED
            with watch.phase("import"):
                from trainer.update import update_adapter
            figures = update_adapter(inputs, checked, settings, build, watch, progress)
        else:
            outcome = Outcome.NO_SIGNAL
            carry_over(build, inputs.adapter, inputs.state)
        result = {
            "outcome": outcome.value,
            **checked.identity,
            "groups": checked.batch.groups,
            "train": _counts(checked) | figures,
            "seconds": {**watch.seconds, "total": watch.total},
        }
        write_marker(build, result)
    written = read_result(inputs.out_dir)
    if written is None:
        raise RuntimeError(f"{inputs.out_dir}: the step's result vanished while it was written")
    report_result(written, progress)
    return written


def check_inputs(inputs: StepInputs, settings: TrainerSettings) -> Checked:
    """Read and check everything that can be checked without a model."""
    adapter = check_adapter(inputs.adapter, inputs.model_dir)
    reference = _check_reference(inputs, adapter, settings)
    groups = read_bundle(inputs.bundle)
    check_bundle(groups, adapter.sha, settings, inputs.bundle)
    batch = collect(groups, settings)
    micro_batches(batch.segments, settings)  # a segment that is too long is found here already
    identity = {
        "step": groups[0].step,
        "parent_sha": adapter.sha,
        "parent_optimizer_sha": state_sha(inputs.state) if inputs.state else None,
        "reference_sha": reference.sha if reference else None,
        "bundle_sha": sha256_file(inputs.bundle),
        "settings": dataclasses.asdict(settings),
    }
    steps = state_steps(inputs.state, adapter.sha) if inputs.state else 0
    return Checked(groups, batch, adapter, reference, steps, identity)


def _check_reference(
    inputs: StepInputs, adapter: AdapterInfo, settings: TrainerSettings
) -> AdapterInfo | None:
    if inputs.reference is None:
        if settings.kl_coef > 0:
            raise BadInput(
                f"kl_coef is {settings.kl_coef}, so a reference is needed: pass "
                "--reference-adapter (the adapter of step 0), or --kl-coef 0"
            )
        return None
    reference = check_adapter(inputs.reference, inputs.model_dir)
    for key in ("rank", "alpha", "target_modules"):
        mine, theirs = getattr(adapter, key), getattr(reference, key)
        if mine != theirs:
            raise BadInput(
                f"{inputs.reference}: {key} is {theirs}, the initial adapter's is {mine}; the "
                "reference is swapped into the live adapter, so both must be built alike"
            )
    return reference


def _already_done(out_dir: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    result = read_result(out_dir)
    if result is None:
        return None
    for key, value in identity.items():
        if result.get(key) != value:
            raise BadInput(
                f"{out_dir}: holds the result of another step: its {key} is {result.get(key)}, "
                f"this one's is {value}; give another --out-dir"
            )
    return result


def _counts(checked: Checked) -> dict[str, float]:
    batch = checked.batch
    return {
        "n_tokens": batch.n_tokens,
        "n_scored_tokens": batch.n_scored,
        "n_trajectories": batch.n_trajectories,
        "n_used": batch.n_used,
        "optimizer_steps": checked.optimizer_steps,
    }
