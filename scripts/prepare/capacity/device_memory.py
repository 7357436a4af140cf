"""Whether a model fits a box: what an engine and a trainer hold on one device.

Estimates of the same kind as the run's own forecasts (`rollout.engine.forecast`,
`trainer.budget`), which ask the machine that they run on; this one asks a box.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.prepare.capacity.box import GIGA, Box
from scripts.prepare.capacity.model_shape import DEFAULT_TARGETS, ITEM_BYTES, ModelShape
from scripts.prepare.capacity.step_work import StepWork
from trainer.budget import activation_bytes
from trainer.settings import CPU_TOKENS, GPU_TOKENS

PROCESS_BYTES = 3 * 2**30
"""Of vLLM's processes: `rollout.engine.vllm_server`."""

TRAINER_BYTES = 2**30
"""Of the trainer's libraries and its chunks of logits: `trainer.budget`."""

LORA_BYTES = 24
"""For each trained parameter: weight, gradient, AdamW's moments, reference and previous value."""

MICRO_BATCHES = (GPU_TOKENS, GPU_TOKENS // 2, CPU_TOKENS)
"""Tokens of a micro-batch that are tried, most first (`trainer.tokens_per_microbatch`)."""


@dataclass(frozen=True)
class Room:
    """Bytes of one device: what an engine and a trainer hold, and what there is. tokens: of a
    micro-batch."""

    engine: float
    trainer: float
    there: float
    tokens: int

    @property
    def fits(self) -> bool:
        """Whether each fits alone."""
        return max(self.engine, self.trainer) <= self.there

    @property
    def side_by_side(self) -> bool:
        """Whether both fit at once, so that adapters are swapped in and the trainer stays."""
        return self.engine + self.trainer <= self.there


def room(work: StepWork, shape: ModelShape, box: Box, *, seats: int, lora_parameters: int) -> Room:
    """What a step needs of one device that serves and trains.

    engine: weights, and the KV cache of the episodes in flight at their end. trainer: weights, LoRA
    and the activations of a micro-batch, the largest that fits beside the engine; where none does,
    the smallest.
    """
    in_flight = min(seats, max(work.group_size, work.episodes / box.n_devices))
    each = activation_bytes(shape.folder, ITEM_BYTES, False, targets=DEFAULT_TARGETS)
    cache = in_flight * work.context * shape.kv_bytes
    engine = shape.weight_bytes + cache + PROCESS_BYTES
    trainer = shape.weight_bytes + LORA_BYTES * lora_parameters + TRAINER_BYTES
    rooms = [
        Room(engine, trainer + max(tokens, work.context) * each, box.memory_gb * GIGA, tokens)
        for tokens in MICRO_BATCHES
    ]
    return next((found for found in rooms if found.side_by_side), rooms[-1])
