"""What a training step can be told. One frozen dataclass, every field with its unit and default.

Values are checked here, so that the rest of the trainer never meets an impossible one. Nothing here
imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json

OPTIMIZERS = ("adamw", "sgd")
TRAINING_DTYPES = ("auto", "bf16", "fp32")
SERVING_DTYPES = ("auto", "bfloat16", "float16", "float32")

CHUNK_ELEMENTS = 16_000_000
"""Logits held at a time: 64 MB in float32, several buffers of which are alive at once."""


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of one optimizer step over one bundle."""

    optimizer: str = "adamw"
    """adamw, or sgd: the gradient itself times lr, which `clip_norm` bounds to lr x clip_norm."""
    lr: float = 2e-4
    """The optimizer's learning rate, constant over the run. AdamW's is no measure for SGD's."""
    kl_coef: float = 0.02
    """β: weight of the k3 KL to the reference adapter. 0 leaves the reference pass out."""
    temperature: float = 1.0
    """T of both sides of every ratio; must be the T that the bundle was sampled at."""
    clip_norm: float = 1.0
    """The gradient's global L2 norm is cut to this."""
    tis_cap: float = 2.0
    """Upper bound of the importance weight exp(lp_trainer − lp_sampler), per token."""
    tokens_per_microbatch: int = 4096
    """Input tokens of one forward pass, padding included. Memory grows with it."""
    max_segment_tokens: int = 16384
    """Longest segment that is tried at all, as a micro-batch of its own, in tokens."""
    dtype: str = "auto"
    """Of the base's weights: bf16, fp32, or auto (bf16 on a GPU; on a CPU what is faster here)."""
    serving_dtype: str = "auto"
    """What the server computes in; auto: the model folder's own, bfloat16 where that is float32."""
    kl_on_silent_groups: bool = False
    """Also hold the policy to the reference on groups whose rewards are all equal."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: far less memory, about a third more time."""
    allow_off_policy: bool = False
    """Train on a bundle that another adapter than the initial one has sampled."""
    seed: int = 0
    """Of torch's generators. With dropout off nothing draws from them."""

    def __post_init__(self) -> None:
        for name in ("lr", "temperature", "clip_norm", "tis_cap"):
            _check(self, name, lambda v: math.isfinite(v) and v > 0, "a number above 0")
        _check(self, "kl_coef", lambda v: math.isfinite(v) and v >= 0, "a number of at least 0")
        for name in ("tokens_per_microbatch", "max_segment_tokens"):
            _check(self, name, lambda v: v >= 1, "a whole number of at least 1")
        _check(self, "optimizer", lambda v: v in OPTIMIZERS, f"one of {OPTIMIZERS}")
        _check(self, "dtype", lambda v: v in TRAINING_DTYPES, f"one of {TRAINING_DTYPES}")
        _check(self, "serving_dtype", lambda v: v in SERVING_DTYPES, f"one of {SERVING_DTYPES}")


def read_settings(file: Path | None, **changes: Any) -> TrainerSettings:
    """Settings from a JSON object of field names (all optional), then `changes` that are not None.

    Raises `BadInput` for an unknown key (naming the nearest known one) or a value of a wrong type.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values = read_json(file)
        if not isinstance(values, dict):
            raise BadInput(f"{file}: expected an object, found {type(values).__name__}")
    defaults = dataclasses.asdict(TrainerSettings())
    for key, value in values.items():
        if key not in defaults:
            near = difflib.get_close_matches(key, defaults, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(defaults)}"
            raise BadInput(f"{file}: {key}: no such setting{hint}")
        values[key] = _typed(value, type(defaults[key]), f"{file}: {key}")
    values |= {key: value for key, value in changes.items() if value is not None}
    return TrainerSettings(**values)


def _typed(value: Any, kind: type, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise BadInput(f"{where}: {value!r} is no {kind.__name__}")
    return value


def _check(settings: TrainerSettings, name: str, holds: Any, needed: str) -> None:
    value = getattr(settings, name)
    if not holds(value):
        raise BadInput(f"trainer setting {name} is {value!r}, {needed} is needed")
