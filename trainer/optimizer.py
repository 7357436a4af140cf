"""The optimizer over the LoRA tensors, and its state as files that go from step to step.

A fresh AdamW takes a signed step of lr in every weight whatever the gradient, so the state is part
of the run. It is kept as safetensors under the tensors' own names: no pickle, equal bytes for equal
state, and bound to the adapter it belongs to. Plain SGD keeps nothing but the generator's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json
from fieldkit.training.tensors import save_tensors
from trainer.checkpoint import OPTIMIZER_FILE, SCHEMA, STATE_FILE, state_steps
from trainer.settings import TrainerSettings

_RNG_KEY = "rng"
_ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names for AdamW's two running means


def make_optimizer(parameters: Mapping[str, Parameter], settings: TrainerSettings) -> Optimizer:
    """The optimizer that `settings` names, at its lr, without weight decay or momentum of SGD's.

    Weight decay would pull a LoRA to the bare base. "adamw" has torch's betas and eps.
    """
    if settings.optimizer == "sgd":
        return SGD(parameters.values(), lr=settings.lr, foreach=False)
    return AdamW(parameters.values(), lr=settings.lr, weight_decay=0.0, foreach=False)


def save_state(
    folder: Path,
    optimizer: Optimizer,
    parameters: Mapping[str, Parameter],
    steps: int,
    adapter_sha: str,
) -> None:
    """Write moments, torch's generator state and the `steps` taken; `adapter_sha`: whose it is."""
    tensors: dict[str, Tensor] = {_RNG_KEY: torch.get_rng_state()}
    for name, parameter in parameters.items():
        for moment in _moments(optimizer):
            value = optimizer.state[parameter][moment]
            tensors[f"{moment}.{name}"] = value.detach().cpu().contiguous()
    folder.mkdir()
    save_tensors(tensors, folder / OPTIMIZER_FILE)
    write_json(
        folder / STATE_FILE,
        {"schema": SCHEMA, "steps": steps, "adapter_sha": adapter_sha},
    )


def load_state(
    folder: Path, optimizer: Optimizer, parameters: Mapping[str, Parameter], adapter_sha: str
) -> int:
    """Continue from `save_state`; returns the steps taken so far.

    Raises `BadInput` for the state of another adapter or another optimizer, and for a tensor that
    is missing, extra, of another shape or not finite.
    """
    steps = state_steps(folder, adapter_sha)
    file = folder / OPTIMIZER_FILE
    tensors = _read(file)
    moments = _moments(optimizer)
    wanted = {f"{moment}.{name}" for moment in moments for name in parameters} | {_RNG_KEY}
    if odd := sorted(wanted ^ tensors.keys()):
        kind = "is missing" if odd[0] in wanted else "belongs to no LoRA tensor or optimizer here"
        raise BadInput(f"{file}: {odd[0]} {kind}; give the trainer_state of the step before")
    for name, parameter in parameters.items():
        values = {}
        for moment in moments:
            value = tensors[f"{moment}.{name}"]
            if value.shape != parameter.shape or not bool(torch.isfinite(value).all()):
                raise BadInput(f"{file}: {moment}.{name} has another shape or is not finite")
            values[moment] = value.to(parameter.device)
        if values:
            # The count is a tensor, as AdamW itself keeps it.
            optimizer.state[parameter] = {"step": torch.tensor(float(steps)), **values}
    torch.set_rng_state(tensors[_RNG_KEY])
    return steps


def _moments(optimizer: Optimizer) -> tuple[str, ...]:
    return _ADAM_MOMENTS if isinstance(optimizer, AdamW) else ()


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise BadInput(f"{file}: no such file; leave --optimizer-state out to start") from None
    except SafetensorError as e:
        raise BadInput(f"{file}: not a whole safetensors file ({e})") from None
