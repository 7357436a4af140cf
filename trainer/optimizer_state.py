"""An optimizer's state as files that are passed from step to step.

A fresh AdamW takes a signed step of lr in every weight whatever the gradient, so the state is part
of the run. It is kept as safetensors under the tensors' own names: no pickle, equal bytes for equal
state, and bound to the adapter it belongs to. Plain SGD has no tensors to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json
from fieldkit.training.tensors import load_tensors, save_tensors
from trainer.checkpoint import OPTIMIZER_FILE, SCHEMA, STATE_FILE, state_steps
from trainer.optimizer import OptimizerKind

_RNG_KEY = "rng"  # in files of older versions; nothing draws from a generator


def save_state(
    folder: Path,
    kind: OptimizerKind,
    optimizer: Optimizer,
    parameters: Mapping[str, Parameter],
    steps: int,
    adapter_sha: str,
) -> None:
    """Write the optimizer's tensors and the `steps` taken. adapter_sha: the adapter that the state
    belongs to."""
    tensors = {
        f"{kept}.{name}": optimizer.state[parameter][kept].detach().cpu().contiguous()
        for name, parameter in parameters.items()
        for kept in kind.keeps
    }
    folder.mkdir()
    save_tensors(tensors, folder / OPTIMIZER_FILE)
    write_json(
        folder / STATE_FILE,
        {"schema": SCHEMA, "steps": steps, "adapter_sha": adapter_sha},
    )


def load_state(
    folder: Path,
    kind: OptimizerKind,
    optimizer: Optimizer,
    parameters: Mapping[str, Parameter],
    adapter_sha: str,
) -> int:
    """Continue from `save_state`; returns the steps taken so far.

    Raises `BadInput` for the state of another adapter or another optimizer, and for a tensor that
    is missing, extra, of another shape or not finite.
    """
    steps = state_steps(folder, adapter_sha)
    file = folder / OPTIMIZER_FILE
    tensors = load_tensors(file)
    tensors.pop(_RNG_KEY, None)
    needed = {f"{kept}.{name}" for kept in kind.keeps for name in parameters}
    if odd := sorted(needed ^ tensors.keys()):
        what = "is missing" if odd[0] in needed else "belongs to no LoRA tensor or optimizer here"
        raise BadInput(f"{file}: {odd[0]} {what}; give the trainer_state of the step before")
    for name, parameter in parameters.items() if kind.keeps else ():
        values = {kept: tensors[f"{kept}.{name}"] for kept in kind.keeps}
        for kept, value in values.items():
            if value.shape != parameter.shape or not bool(torch.isfinite(value).all()):
                raise BadInput(f"{file}: {kept}.{name} has another shape or is not finite")
            values[kept] = value.to(parameter.device)
        # The count is a tensor, as torch itself keeps it.
        optimizer.state[parameter] = {"step": torch.tensor(float(steps)), **values}
    return steps
