"""Whether a model fits a box: what an engine and a trainer hold on one device.

Estimates of the same kind as the run's own forecasts (`rollout.engine.forecast`,
`trainer.footprint`), which ask the machine that they run on; this one asks a box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scripts.prepare.capacity.box import GIGA, Box
from scripts.prepare.capacity.model_shape import DEFAULT_TARGETS, ITEM_BYTES, ModelShape
from scripts.prepare.capacity.step_work import StepWork
from trainer.footprint.step_bytes import activation_bytes
from trainer.settings import GPU_TOKENS

PROCESS_BYTES = 3 * 2**30
"""Of vLLM's processes: `rollout.engine.vllm_server`."""

TRAINER_BYTES = 2**30
"""Of the trainer's libraries and its chunks of logits: `trainer.footprint`."""

LORA_BYTES = 24
"""For each trained parameter: weight, gradient, AdamW's moments, reference and previous value."""

MICRO_BATCHES = (GPU_TOKENS, GPU_TOKENS // 2, GPU_TOKENS // 4)
"""Tokens of a micro-batch that are tried, most first (`trainer.tokens_per_microbatch`)."""


@dataclass(frozen=True)
class Room:
    """Bytes of one device: what an engine and a trainer hold, and what there is.

    seats: attempts that the engine decodes at once. tokens: of a micro-batch. checkpointing: its
    activations are made again in the backward pass (`trainer.gradient_checkpointing`).
    """

    engine: float
    trainer: float
    there: float
    seats: int
    tokens: int
    checkpointing: bool = False

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

    engine: weights, and the KV cache of the attempts in flight at their end; where it is too large,
    of fewer of them, but of a group's at least (others wait for a seat). trainer: weights, LoRA and
    the activations of a micro-batch, the largest that fits beside the engine; where none does, the
    smallest. Where not even that fits, the activations are made again, as a person would set it.
    """
    kept, made_again = (
        _room(work, shape, box, seats, lora_parameters, checkpointing=checkpointing)
        for checkpointing in (False, True)
    )
    return kept if kept.fits else made_again


def _room(
    work: StepWork,
    shape: ModelShape,
    box: Box,
    seats: int,
    lora_parameters: int,
    *,
    checkpointing: bool,
) -> Room:
    there = box.memory_gb * GIGA
    each = activation_bytes(
        shape.folder, ITEM_BYTES, checkpointing, targets=DEFAULT_TARGETS, on_gpu=box.is_gpu
    )
    cache = work.context * shape.kv_bytes
    engine = shape.weight_bytes + PROCESS_BYTES
    trainer = shape.weight_bytes + LORA_BYTES * lora_parameters + TRAINER_BYTES
    wanted = min(seats, math.ceil(max(work.group_size, work.episodes / box.n_devices)))

    def with_seats(seats: int, tokens: int) -> Room:
        batch = max(tokens, work.context) * each
        held = engine + seats * cache, trainer + batch
        return Room(*held, there, seats, tokens, checkpointing)

    def fitting(beside: float) -> int:
        """Seats for which there is memory beside so many bytes."""
        free = there - engine - beside
        most = int(free / cache) if cache and free < wanted * cache else wanted
        return min(wanted, max(most, min(wanted, work.group_size)))

    smallest = with_seats(0, MICRO_BATCHES[-1])
    tried = [with_seats(wanted, tokens) for tokens in MICRO_BATCHES]
    tried.append(with_seats(fitting(smallest.trainer), smallest.tokens))
    alone = with_seats(fitting(0), smallest.tokens)
    return next((found for found in tried if found.side_by_side), alone)
