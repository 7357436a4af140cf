"""AdamW over the LoRA tensors, and its state as files that go from step to step.

A fresh AdamW takes a signed step of lr in every weight whatever the gradient, so the state is part
of the run. It is kept as safetensors under the tensors' own names: no pickle, equal bytes for equal
state, and bound to the adapter it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW

from fieldkit.errors import BadInput
from fieldkit.files import write_json
from trainer.checkpoint import OPTIMIZER_FILE, SCHEMA, STATE_FILE, state_steps

_RNG_KEY = "rng"
_MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names for AdamW's two running means


def make_optimizer(parameters: Mapping[str, Parameter], lr: float) -> AdamW:
    """AdamW with torch's betas and eps, no weight decay: decay pulls a LoRA to the bare base."""
    return AdamW(parameters.values(), lr=lr, weight_decay=0.0, foreach=False)


def save_state(
    folder: Path, optimizer: AdamW, parameters: Mapping[str, Parameter], adapter_sha: str
) -> None:
    """Write moments, step count and torch's generator state; `adapter_sha` is whose state it is."""
    tensors: dict[str, Tensor] = {_RNG_KEY: torch.get_rng_state()}
    steps = set()
    for name, parameter in parameters.items():
        state = optimizer.state[parameter]
        steps.add(int(state["step"]))
        for moment in _MOMENTS:
            tensors[f"{moment}.{name}"] = state[moment].detach().cpu().contiguous()
    if len(steps) != 1:
        raise RuntimeError(f"the LoRA tensors have taken different numbers of steps: {steps}")
    folder.mkdir()
    save_file(tensors, folder / OPTIMIZER_FILE)
    write_json(
        folder / STATE_FILE,
        {"schema": SCHEMA, "steps": steps.pop(), "adapter_sha": adapter_sha},
    )


def load_state(
    folder: Path, optimizer: AdamW, parameters: Mapping[str, Parameter], adapter_sha: str
) -> int:
    """Continue from `save_state`; returns the steps taken so far.

    Raises `BadInput` for the state of another adapter, and for a tensor that is missing, extra, of
    another shape or not finite.
    """
    steps = state_steps(folder, adapter_sha)
    file = folder / OPTIMIZER_FILE
    tensors = _read(file)
    wanted = {f"{moment}.{name}" for moment in _MOMENTS for name in parameters} | {_RNG_KEY}
    if odd := sorted(wanted ^ tensors.keys()):
        kind = "is missing" if odd[0] in wanted else "belongs to no LoRA tensor"
        raise BadInput(f"{file}: {odd[0]} {kind}")
    for name, parameter in parameters.items():
        moments = {}
        for moment in _MOMENTS:
            value = tensors[f"{moment}.{name}"]
            if value.shape != parameter.shape or not bool(torch.isfinite(value).all()):
                raise BadInput(f"{file}: {moment}.{name} has another shape or is not finite")
            moments[moment] = value.to(parameter.device)
        # The count is a tensor, as AdamW itself keeps it.
        optimizer.state[parameter] = {"step": torch.tensor(float(steps)), **moments}
    torch.set_rng_state(tensors[_RNG_KEY])
    return steps


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise BadInput(f"{file}: no such file; leave --optimizer-state out to start") from None
    except SafetensorError as e:
        raise BadInput(f"{file}: not a whole safetensors file ({e})") from None
