"""The settings of a training step: the table [trainer] of run.toml.

Values are checked here, so that the rest of the trainer never gets an impossible one. Nothing here
imports torch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Le
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from fieldkit.gate.memory import gpu_names
from fieldkit.settings import Change, Choice, Follows, Unit, read, settings
from trainer.optimizer import OPTIMIZERS

TrainingDtype = Literal["auto", "bf16", "fp32"]
ServingDtype = Literal["auto", "bfloat16", "float16", "float32"]

CHUNK_ELEMENTS = 16_000_000
"""Logits held at a time: 64 MB in float32, several buffers of which are alive at once."""


CPU_TOKENS, GPU_TOKENS = 1024, 4096
"""Default micro-batches. A default step's gradient took 33 s at 1,024 and 42 s at 4,096 on two
cores of an EPYC; `tests/trainer/microbatch_price.py` measures both."""


@settings("trainer", retired={"seed": "run.seed"})
class TrainerSettings:
    """Settings of one optimizer step over one bundle."""

    optimizer: Annotated[str, Choice(OPTIMIZERS)] = "adamw"
    """What turns the gradient into a step."""
    lr: PositiveFloat = 2e-4
    """The optimizer's learning rate, constant over the run. AdamW's is no measure for SGD's."""
    kl_coef: NonNegativeFloat = 0.02
    """β: weight of the k3 KL to the reference adapter. 0 leaves the reference pass out."""
    temperature: Annotated[PositiveFloat, Le(2), Follows("rollout.temperature")] = 1.0
    """T of both sides of every ratio; must be the T that the bundle was sampled at."""
    clip_norm: PositiveFloat = 1.0
    """The gradient's global L2 norm is cut to this."""
    tis_cap: PositiveFloat = 2.0
    """Upper bound of the importance weight exp(lp_trainer − lp_sampler), per token."""
    tokens_per_microbatch: Annotated[PositiveInt | None, Unit("tokens"), Change.MACHINE] = None
    """Input tokens of one forward pass; what episodes share counts once, padding counts. Memory
    grows with it. Left out: 1,024 on a CPU, 4,096 on a GPU; a run keeps what it began with, since
    another one changes sums in their last bits."""
    max_segment_tokens: Annotated[PositiveInt, Unit("tokens"), Change.MACHINE] = 16384
    """Longest segment that is tried at all, as a micro-batch of its own."""
    dtype: TrainingDtype = "auto"
    """Of the base's weights: bf16, fp32, or auto (bf16 on a GPU; on a CPU what is faster here)."""
    serving_dtype: ServingDtype = "auto"
    """What the server computes in; auto: the model folder's own, bfloat16 where that is float32."""
    kl_on_silent_groups: bool = False
    """Also hold the policy to the reference on groups whose rewards are all equal."""
    gradient_checkpointing: Annotated[bool, Change.MACHINE] = False
    """Recompute activations in the backward pass: far less memory, about a third more time."""
    allow_off_policy: bool = False
    """Train on a bundle that another adapter than the initial one has sampled."""

    @property
    def microbatch_tokens(self) -> int:
        """`tokens_per_microbatch`, or the default of this machine's device."""
        return self.tokens_per_microbatch or (GPU_TOKENS if gpu_names() else CPU_TOKENS)

    @property
    def step_norm(self) -> float | None:
        """The most that a step moves the weights (L2, over all of them); None where the optimizer
        gives no such bound."""
        return self.lr * self.clip_norm if OPTIMIZERS[self.optimizer].step_is_gradient else None


def read_settings(file: Path | None, **changes: Any) -> TrainerSettings:
    """Settings from a JSON object of field names (all optional), then `changes` that are not None.

    Raises `BadInput` for an unknown key (naming the nearest known one) or an impossible value.
    """
    values = {} if file is None else read_json(file)
    if not isinstance(values, dict):
        raise BadInput(f"{file}: expected an object, found {type(values).__name__}")
    said = {key: value for key, value in changes.items() if value is not None}
    return replace(read(TrainerSettings, values, str(file)), **said)
