"""The settings of a training step: the table [trainer] of run.toml.

Values are checked here, so that the rest of the trainer never gets an impossible one. Nothing here
imports torch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from fieldkit.gate import nvidia
from fieldkit.settings import Change, Choice, Follows, Unit, read, settings
from fieldkit.training.objectives import Normalisation
from trainer.objective import OBJECTIVES, Band
from trainer.optimizer import OPTIMIZERS

TrainingDtype = Literal["auto", "bf16", "fp32"]
ServingDtype = Literal["auto", "bfloat16", "float16", "float32"]

CHUNK_ELEMENTS = 16_000_000
"""Logits held at a time: 64 MB in float32, several buffers of which are alive at once."""


CPU_TOKENS, GPU_TOKENS = 1024, 4096
"""Default micro-batches; on a CPU there is one on each core. More attempts that begin alike are
together in a larger one: on two cores of an EPYC the gradients of four bundles take 0.94 of the
time at 768, with 0.2 GB more. `tests/trainer/microbatch_price.py` measures it."""


@settings(
    "trainer",
    retired={"seed": "run.seed", "max_segment_tokens": None, "allow_off_policy": None},
)
class TrainerSettings:
    """Settings of one step over one bundle."""

    objective: Annotated[str, Choice(OBJECTIVES)] = "reinforce"
    """The objective to minimise. A sequence, in an objective's description, is the reply of one
    turn."""
    normalisation: Literal["auto", Normalisation] = "auto"
    """What the losses of tokens are averaged over, silent groups included. "token": all tokens;
    "sequence": the mean of the turns' means; "group": the mean of the groups' means; "constant":
    their sum by turns × rollout.max_new_tokens; "auto": the objective's own."""
    clip_low: Annotated[float, Ge(0), Le(1)] | None = None
    """The ratio's band begins at 1 − clip_low. Left out: the objective's own."""
    clip_high: NonNegativeFloat | None = None
    """The ratio's band ends at 1 + clip_high. Left out: the objective's own."""
    passes: PositiveInt = 1
    """Optimizer steps over one bundle, each with the gradient of all of it. Ratios are to the
    policy before the first."""
    optimizer: Annotated[str, Choice(OPTIMIZERS)] = "adamw"
    """What turns the gradient into a step."""
    lr: PositiveFloat = 2e-4
    """The optimizer's learning rate. Values for AdamW and SGD are not comparable."""
    decay_after: Annotated[NonNegativeInt, Unit("steps")] = 0
    """After this step the learning rate falls as √(decay_after / step): steps of one length go on
    wandering where the gradient is noise. 0: it stays."""
    kl_coef: NonNegativeFloat = 0.02
    """β: weight of the KL to the reference adapter. 0 leaves the reference pass out."""
    kl_small: Annotated[NonNegativeFloat, Unit("nats a token")] = 0.0
    """A KL that is below this, and would be if the weights went on from the reference as they have,
    is small enough to be computed at every `kl_every`-th step only. In the steps between there is
    no reference pass, the loss has no KL, and tables show none. 0: it is computed at every step."""
    kl_every: Annotated[PositiveInt, Unit("steps")] = 5
    """How often a KL below `kl_small` is computed."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimator of that KL: k2 or k3 in the loss, k1 in the reward. Elsewhere their
    mean gradient is not the KL's."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL is a term of the loss, or is subtracted from each token's advantage, with its
    value before the first optimizer step."""
    temperature: Annotated[PositiveFloat, Le(2), Follows("rollout.temperature")] = 1.0
    """T of both sides of every ratio; must be the T that the bundle was sampled at."""
    clip_norm: PositiveFloat = 1.0
    """The gradient's global L2 norm is clipped to this."""
    tis_cap: PositiveFloat = 2.0
    """Upper bound of the importance weight exp(lp_trainer − lp_sampler), per token. The objective
    "masked" uses its band instead."""
    tokens_per_microbatch: Annotated[PositiveInt | None, Unit("tokens"), Change.MACHINE] = None
    """Input tokens of one forward pass, with padding; tokens that episodes share count once. A
    longer episode is a pass of its own. Memory grows with it; on a CPU each core, up to four, has a
    pass of its own. Left out: 1,024 on a CPU, 4,096 on a GPU; a run keeps its first value, because
    another one changes the last bits of sums."""
    dtype: TrainingDtype = "auto"
    """Dtype of the base's weights: bf16, fp32, or auto (bf16 on a GPU and the faster one on a CPU,
    where the server computes in bfloat16; else fp32)."""
    serving_dtype: Annotated[ServingDtype, Follows("engine.dtype")] = "auto"
    """Dtype in which the server computes; auto: as engine.dtype has it."""
    kl_on_silent_groups: bool = False
    """Also hold the policy to the reference on groups whose rewards are all equal, where the step
    has other groups too."""
    gradient_checkpointing: Annotated[bool, Change.MACHINE] = False
    """Recompute activations in the backward pass: far less memory, about a third more time."""
    launch: Annotated[Literal["auto", "single", "torchrun"], Change.MACHINE] = "auto"
    """How the trainer is started. "single": one process, which engine.keep_trainer may keep from
    step to step. "torchrun": `processes` of them, each with a part of the bundle, started anew for
    each step; their number changes the last bits of sums. "auto": torchrun where `processes` are
    several, or where `shard_base` asks for them; else a single one."""
    processes: Annotated[PositiveInt | None, Change.MACHINE] = None
    """Processes that take a step together, on CUDA at most one for each device. Left out: one for
    each CUDA device where torchrun starts them, and one on a CPU."""
    shard_base: Annotated[bool, Change.MACHINE] = False
    """With several processes, for a base that does not fit one device: each keeps a part of the
    layers (FSDP2) and gathers the other parts for each pass. The base is kept in the server's
    dtype."""

    def __post_init__(self) -> None:
        if self.launch == "single" and (self.processes or 1) > 1:
            raise BadInput(
                f'trainer.processes: launch "single" is one process, and processes is'
                f' {self.processes}; leave it out, or set launch to "torchrun"'
            )
        for key in ("clip_low", "clip_high"):
            if getattr(self, key) is not None and not OBJECTIVES[self.objective].clips:
                raise BadInput(
                    f"trainer.{key}: objective {self.objective!r} clips no ratio (trainer.tis_cap"
                    f" bounds its weights); leave out {key}, or set another objective"
                )

    def check_new(self, devices: int) -> None:
        """Raises `BadInput` for what does nothing, or something else than it is for, on a machine
        with so many CUDA devices. Asked when a run begins: one that began with it can still be
        read, and goes on."""
        if self.shard_base and self.ranks_on(devices) == 1:
            raise BadInput(
                "trainer.shard_base: one process takes the step, and keeps the whole base; leave"
                " out trainer.launch, and set trainer.processes to the number of parts (on a GPU"
                " each takes one), or leave out shard_base"
            )
        if self.kl_coef and (self.kl_in == "reward") != (self.kl_estimator == "k1"):
            estimators = "k1" if self.kl_in == "reward" else "k2 or k3"
            raise BadInput(
                f"trainer.kl_estimator: {self.kl_estimator} in the {self.kl_in} does not hold the"
                f" policy to the reference, since its mean gradient is not the KL's; set"
                f" trainer.kl_estimator to {estimators}"
            )
        if self.tis_cap < 1:
            raise BadInput(
                f"trainer.tis_cap: {self.tis_cap:g} scales every token's weight, which is 1 where"
                " trainer and sampler agree; set 1 or more"
            )
        idle = not OBJECTIVES[self.objective].of_sampler and self.passes == 1
        for key in ("clip_low", "clip_high"):
            if idle and getattr(self, key) is not None:
                raise BadInput(
                    f"trainer.{key}: with trainer.passes = 1 every ratio to the policy before the"
                    f" first optimizer step is 1, so nothing is clipped; leave out {key}, or raise"
                    " passes"
                )

    @property
    def normalised_by(self) -> Normalisation:
        """`normalisation`, or the objective's own."""
        if self.normalisation == "auto":
            return OBJECTIVES[self.objective].normalisation
        return self.normalisation

    @property
    def band(self) -> Band:
        """Of the objective's ratio."""
        own = OBJECTIVES[self.objective].band
        low = own.low if self.clip_low is None else self.clip_low
        return Band(low, own.high if self.clip_high is None else self.clip_high)

    @property
    def microbatch_tokens(self) -> int:
        """`tokens_per_microbatch`, or the default of this machine's device."""
        return self.tokens_per_microbatch or self.tokens_on(cuda_devices())

    def tokens_on(self, devices: int) -> int:
        """The default of `tokens_per_microbatch` with so many CUDA devices."""
        return GPU_TOKENS if devices else CPU_TOKENS

    @property
    def world_size(self) -> int:
        """Processes that take a step together on this machine."""
        return self.ranks_on(cuda_devices())

    def ranks_on(self, devices: int) -> int:
        """Processes that take a step together on a machine with so many CUDA devices."""
        if self.launch == "single":
            return 1
        # Several start anew for each step, which most steps on a GPU take less time than.
        several = self.launch == "torchrun" or self.shard_base
        return self.processes or (devices if several else 0) or 1

    def require_devices(self, devices: int, where: str) -> None:
        """Raise `BadInput` for more processes than CUDA devices; without a device they share the
        cores. where: those devices are, in words."""
        size = self.ranks_on(devices)
        if devices and size > devices:
            raise BadInput(
                f"trainer.processes is {size}, and {where} {devices} CUDA device(s): each process"
                f" needs one; set trainer.processes to {devices}, or leave it out"
            )

    @property
    def launched(self) -> bool:
        """Whether torchrun starts them."""
        return self.launch == "torchrun" or self.world_size > 1

    @property
    def shards(self) -> int:
        """Into how many parts the base's layers are cut."""
        return self.world_size if self.shard_base else 1

    def at_step(self, step: int) -> TrainerSettings:
        """The settings with the learning rate of this step of a run, counted from 1."""
        if not 0 < self.decay_after < step:
            return self
        return replace(self, lr=self.lr * math.sqrt(self.decay_after / step))

    def without_kl(self) -> TrainerSettings:
        """The settings of a step whose KL is not computed."""
        return replace(self, kl_coef=0.0)

    @property
    def step_norm(self) -> float | None:
        """The most that a step moves the weights (L2, over all of them); None where the optimizer
        gives no such bound."""
        bounded = OPTIMIZERS[self.optimizer].step_is_gradient
        return self.passes * self.lr * self.clip_norm if bounded else None


def cuda_devices() -> int:
    """NVIDIA devices that CUDA would find, without loading it."""
    return min(nvidia.gpu_count(), len(nvidia.visible_gpus()))


def read_settings(file: Path | None, **changes: Any) -> TrainerSettings:
    """Settings from a JSON object of field names (all optional), then `changes` that are not None.

    Raises `BadInput` for an unknown key (naming the nearest known one) or an impossible value.
    """
    values = {} if file is None else read_json(file)
    if not isinstance(values, dict):
        raise BadInput(f"{file}: expected an object, found {type(values).__name__}")
    said = {key: value for key, value in changes.items() if value is not None}
    return replace(read(TrainerSettings, values, str(file)), **said)
