"""The files of one step, and everything that can be checked of them without a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.codec import read_bundle
from fieldkit.errors import BadInput
from fieldkit.files.sharded import sha256_records
from fieldkit.records import RolloutGroup
from fieldkit.training.adapter import AdapterInfo, check_adapter
from trainer.batch import TrainingBatch, check_bundle, collect
from trainer.checkpoint import state_sha, state_steps
from trainer.settings import TrainerSettings


@dataclass(frozen=True)
class StepInputs:
    """The files of one step. reference: None only if β is 0. state: None starts a new state.
    sampler: the adapter that sampled the bundle; None: `adapter`."""

    bundle: Path
    adapter: Path
    reference: Path | None
    model_dir: Path
    state: Path | None
    out_dir: Path
    sampler: Path | None = None


@dataclass(frozen=True)
class Checked:
    """The inputs after reading and checking."""

    groups: tuple[RolloutGroup, ...]
    batch: TrainingBatch
    adapter: AdapterInfo
    reference: AdapterInfo | None
    optimizer_steps: int
    identity: dict[str, Any]
    """What a result is bound to: the settings, and hashes of all inputs but the model, which a run
    binds in its manifest."""

    @property
    def reference_is_own(self) -> bool:
        """Whether the reference is the adapter under training, as in a run's first step."""
        return self.reference is not None and self.reference.sha == self.adapter.sha


def check_inputs(inputs: StepInputs, settings: TrainerSettings) -> Checked:
    """Read and check everything that can be checked without a model."""
    adapter = check_adapter(inputs.adapter, inputs.model_dir)
    reference = _check_reference(inputs, adapter, settings)
    groups = read_bundle(inputs.bundle)
    sampler = check_adapter(inputs.sampler, inputs.model_dir).sha if inputs.sampler else None
    check_bundle(groups, adapter.sha, settings, inputs.bundle, sampler)
    batch = collect(groups, settings)
    identity = {
        "step": groups[0].step,
        "parent_sha": adapter.sha,
        "parent_optimizer_sha": state_sha(inputs.state) if inputs.state else None,
        "reference_sha": reference.sha if reference else None,
        **({"sampler_sha": sampler} if sampler else {}),
        "bundle_sha": sha256_records(inputs.bundle),
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
    for key in ("rank", "alpha", "target_modules", "use_rslora"):
        mine, theirs = getattr(adapter, key), getattr(reference, key)
        if mine != theirs:
            raise BadInput(
                f"{inputs.reference}: {key} is {theirs}, the initial adapter's is {mine}; the "
                "reference is swapped into the live adapter, so both must be built alike"
            )
    return reference
