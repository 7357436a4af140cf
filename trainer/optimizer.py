"""The optimizers: how each is made and what it keeps from step to step.

A new one is one line `OPTIMIZERS.register(…)`, from which settings, errors and documentation list
it. torch is imported only when an optimizer is made, because every command reads the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fieldkit.registry import Registry

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer


@dataclass(frozen=True)
class OptimizerKind:
    """One way to turn a gradient into a step."""

    make: Callable[[Iterable[Parameter], float], Optimizer]
    """From the LoRA parameters and lr."""
    meaning: str
    """One line for the documentation."""
    keeps: tuple[str, ...] = ()
    """Tensors that it keeps for each parameter, by torch's names for them."""
    step_is_gradient: bool = False
    """Whether a step is lr times the clipped gradient, so that lr · clip_norm bounds its length."""


def _adamw(parameters: Iterable[Parameter], lr: float) -> Optimizer:
    """torch's betas and eps. No weight decay: it pulls a LoRA to the bare base."""
    from torch.optim import AdamW

    return AdamW(parameters, lr=lr, weight_decay=0.0, foreach=False)


def _sgd(parameters: Iterable[Parameter], lr: float) -> Optimizer:
    """Without momentum and weight decay."""
    from torch.optim import SGD

    return SGD(parameters, lr=lr, foreach=False)


OPTIMIZERS: Registry[OptimizerKind] = Registry("optimizer")
"""By the names that settings use."""
OPTIMIZERS.register(
    "adamw",
    OptimizerKind(
        _adamw,
        "AdamW without weight decay; its two running means continue from step to step",
        keeps=("exp_avg", "exp_avg_sq"),
    ),
)
OPTIMIZERS.register(
    "sgd",
    OptimizerKind(
        _sgd,
        "lr times the clipped gradient, so a step moves the weights by at most lr × clip_norm (L2)",
        step_is_gradient=True,
    ),
)
