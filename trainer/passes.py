"""The optimizer's steps over one bundle: gradient, clip, step, as often as `passes` says.

The policy's logprobs from before the first step are kept, so that the ratios of every later pass
refer to them. No file here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fieldkit.errors import BadInput
from trainer.batch import TrainingBatch
from trainer.gradient import accumulate_gradient
from trainer.objective import OBJECTIVES
from trainer.progress import Progress
from trainer.scoring.micro_batch import Micro
from trainer.scoring.policy import Policy
from trainer.settings import TrainerSettings


def take_passes(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: TrainingBatch,
    batches: Sequence[Micro],
    references: Sequence[Tensor] | None,
    settings: TrainerSettings,
    progress: Progress,
    where: str,
) -> dict[str, float]:
    """Move the policy and return the figures of the bundle.

    All are those of the first pass, before any step: what the bundle looked like to the policy that
    sampled it. ratio_clipped_share is the last pass's, where the policy is farthest from there; it
    is left out for an objective that clips no ratio. Raises `BadInput` for a gradient that is not
    finite, beginning with `where`.
    """
    figures: dict[str, float] = {}
    old: list[Tensor] | None = None
    share = 0.0
    for number in range(1, settings.passes + 1):
        optimizer.zero_grad()
        found, scored = accumulate_gradient(
            policy, batch, batches, references, settings, progress, old
        )
        norm = torch.nn.utils.clip_grad_norm_(policy.lora().values(), settings.clip_norm).item()
        if not math.isfinite(norm):
            raise BadInput(f"{where}: the gradient's norm is {norm} in pass {number}")
        optimizer.step()
        share = found.ratio_clipped_share
        if old is None:
            old = scored
            figures = dataclasses.asdict(found) | {"grad_norm": norm}
    del figures["ratio_clipped_share"]
    if OBJECTIVES[settings.objective].clips:
        figures["ratio_clipped_share"] = share
    return figures
