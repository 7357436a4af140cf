"""The optimizer's steps over one bundle: gradient, clip, step, `passes` times.

The policy's logprobs from before the first step are kept, because the ratios of every later pass
refer to them. Nothing here reads or writes a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fieldkit.errors import BadInput, Shortage
from trainer.batch import TrainingBatch
from trainer.gradient import MicroBatchTooLarge, References, accumulate_gradient
from trainer.progress import Progress
from trainer.ranks.rank import ALONE, Rank
from trainer.scoring.micro_batch import Micro
from trainer.scoring.policy import Policy
from trainer.settings import TrainerSettings


def take_passes(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: TrainingBatch,
    batches: Sequence[Micro],
    references: References,
    settings: TrainerSettings,
    progress: Progress,
    where: str,
    rank: Rank = ALONE,
) -> dict[str, float]:
    """Move the policy and return the figures of the bundle.

    batches: this rank's; every rank moves its policy by the gradient of all.

    They are those of the first pass (`accumulate_gradient`), before any step, under the policy that
    sampled the bundle, with the gradient's norm before it is clipped. Only ratio_clipped_share is
    the last pass's, in which the policy has moved furthest. Raises `BadInput` for a gradient that
    is not finite, beginning with `where`, and `MicroBatchTooLarge` only before any step.
    """
    figures: dict[str, float] = {}
    old: list[Tensor] | None = None
    share: float | None = None
    for number in range(1, settings.passes + 1):
        optimizer.zero_grad()
        try:
            found, scored = accumulate_gradient(
                policy, batch, batches, references, settings, progress, old, rank
            )
        except MicroBatchTooLarge as e:
            if number > 1:  # whoever began again would take the first step twice
                raise Shortage(str(e)) from e
            raise
        norm = torch.nn.utils.clip_grad_norm_(policy.lora().values(), settings.clip_norm).item()
        if not math.isfinite(norm):
            raise BadInput(f"{where}: the gradient's norm is {norm} in pass {number}")
        optimizer.step()
        share = found.pop("ratio_clipped_share", None)
        if old is None:
            old, figures = scored, found | {"grad_norm": norm}
    return figures if share is None else figures | {"ratio_clipped_share": share}
