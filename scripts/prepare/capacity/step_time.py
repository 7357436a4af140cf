"""The model of a step: seconds of each part, from its work, the model's shape and the box.

Decoding is a roofline (Williams et al. 2009, CACM 52(4)): an iteration of the engine samples one
token for each episode in flight. It takes as long as the slower of reading weights and KV cache
from memory and computing the products, and the engine's own time. Everything else is FLOPs by a
share of what the device's matrix products reach, bytes by a bandwidth, or a constant. Pure: nothing
here is measured, and everything it returns is a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from scripts.prepare.capacity.box import GIGA, Box
from scripts.prepare.capacity.model_shape import ModelShape
from scripts.prepare.capacity.step_work import StepWork

TURN_SECONDS = 0.014
"""A command in the sandbox: docs/price.md, a pipeline."""

FULLEST_OF_EIGHT = 1.26
"""Tokens of the fullest of eight trainer processes over the mean one's, measured on a night's
bundles; of two it is 1.02 to 1.10 (docs/LOG.md)."""

_FORWARD_TWICE = 1.5
"""Of a gradient whose activations are made again: 6 FLOPs for each weight instead of 4."""

_FLOAT32 = 4


@dataclass(frozen=True)
class Efficiency:
    """What the software makes of a device; fitted (`fitting.py`).

    engine, reference, gradient: shares of the FLOP/s that large matrix products reach.
    canary_tokens: the canary as tokens of a forward pass. fixed: seconds of a step that no part
    claims: the phases' programs start, files are written, the adapter is swapped and proven.
    trainer_seconds: a trainer process's start and imports.
    """

    engine: float
    reference: float
    gradient: float
    canary_tokens: float
    fixed: float
    trainer_seconds: float


@dataclass(frozen=True)
class Way:
    """How a loop goes about a step.

    seats: most episodes that one engine decodes at once (`engine.max_num_seqs`). restart: the
    engine is started again for each adapter. load: the trainer is. lora_parameters: of the adapter.
    checkpointing: activations are made again in the backward pass.
    """

    seats: int = 64
    restart: bool = False
    load: bool = False
    lora_parameters: int = 0
    checkpointing: bool = False


@dataclass(frozen=True)
class StepTime:
    """A step's seconds by part. processes: of the trainer."""

    decode: float
    prefill: float
    worlds: float
    reference: float
    gradient: float
    canary: float
    trainer_load: float
    engine_restart: float
    transfer: float
    fixed: float
    processes: int

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds by part, in the order of a step."""
        return {name: value for name, value in asdict(self).items() if name != "processes"}

    @property
    def rollout(self) -> float:
        return self.decode + self.prefill + self.worlds

    @property
    def training(self) -> float:
        return self.reference + self.gradient

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def iteration_seconds(
    shape: ModelShape, box: Box, efficiency: Efficiency, in_flight: float, context: float
) -> float:
    """Of a decode iteration with `in_flight` episodes, each with `context` tokens in its cache."""
    read = shape.streamed_bytes + in_flight * context * shape.kv_bytes
    compute = shape.forward_flops(in_flight, in_flight) / (box.flops * efficiency.engine)
    return max(read / box.bandwidth, compute) + box.iteration_ms / 1000


def bend(shape: ModelShape, box: Box, efficiency: Efficiency, context: float) -> float:
    """Episodes in flight on one device from which a decode iteration is bound by FLOP/s; below,
    another episode costs nearly nothing. Infinite where an episode's KV cache takes longer to read
    than its token to compute."""
    compute = shape.forward_flops(1, 1) / (box.flops * efficiency.engine)
    cache = context * shape.kv_bytes / box.bandwidth
    return shape.streamed_bytes / box.bandwidth / (compute - cache) if compute > cache else math.inf


def iterations(work: StepWork, sampled: float, seats: int) -> float:
    """Decode iterations of an engine that samples so many of the work's tokens: as many as the
    longest episode has, or more where it has fewer seats than episodes."""
    return max(min(work.longest, sampled), sampled / seats)


def pass_seconds(
    shape: ModelShape, box: Box, efficiency: Efficiency, inputs: float, scored: float
) -> tuple[float, float, float]:
    """Seconds of the reference pass, of the gradient and of the canary, in one process."""

    def seconds(flops: float, share: float) -> float:
        return flops / (box.flops * share)

    canary = shape.forward_flops(efficiency.canary_tokens, efficiency.canary_tokens)
    reference = box.reference_share or efficiency.reference
    return (
        seconds(shape.forward_flops(inputs, scored), reference),
        seconds(shape.gradient_flops(inputs, scored), box.gradient_share or efficiency.gradient),
        seconds(canary, reference),
    )


def rollout_seconds(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, seats: int
) -> tuple[float, float, float]:
    """Seconds of decoding, of reading prompts and observations, and in worlds.

    A group stays at one engine, for its prefix cache (`rollout.engine.router`), so the fullest
    engine has a whole number of groups.
    """
    groups = math.ceil(work.episodes / work.group_size)
    fullest = min(1.0, math.ceil(groups / box.n_devices) * work.group_size / work.episodes)
    sampled, read = work.sampled * fullest, work.read * fullest
    prefill = shape.forward_flops(read, 0) / (box.flops * efficiency.engine)
    if not sampled:
        return 0.0, prefill, 0.0
    n = iterations(work, sampled, seats)
    # Half of the context: an episode's grows from its prompt to its end.
    one = iteration_seconds(shape, box, efficiency, sampled / n, work.context / 2)
    turns = work.turns * fullest * n / sampled  # one after another
    return n * one, prefill, turns * TURN_SECONDS


def step_time(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way
) -> StepTime:
    """The step's seconds. The trainer takes one process or one for each device of a machine,
    whichever is faster: several start anew for each step."""
    one, all_ = (_step_time(work, shape, box, efficiency, way, n) for n in (1, box.devices))
    return min(one, all_, key=lambda time: time.total)


def _step_time(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way, processes: int
) -> StepTime:
    decode, prefill, worlds = rollout_seconds(work, shape, box, efficiency, way.seats)
    # 1 for one process, FULLEST_OF_EIGHT for eight, by the logarithm between.
    fullest = (1 + (FULLEST_OF_EIGHT - 1) * math.log2(processes) / 3) / processes
    inputs, scored = work.inputs * fullest, work.scored * fullest
    weights = shape.weight_bytes / (box.disk_gb_s * GIGA)
    adapter = _FLOAT32 * way.lora_parameters / (box.link_gb_s * GIGA)
    reference, gradient, canary = pass_seconds(shape, box, efficiency, inputs, scored)
    if way.checkpointing and box.gradient_share is None:  # a box's own share was measured with it
        gradient *= _FORWARD_TWICE
    return StepTime(
        decode=decode,
        prefill=prefill,
        worlds=worlds,
        reference=work.referenced * reference,
        gradient=gradient,
        canary=canary,
        trainer_load=efficiency.trainer_seconds + weights if way.load or processes > 1 else 0.0,
        engine_restart=box.start_seconds + weights if way.restart else 0.0,
        transfer=adapter * (box.machines - 1),
        fixed=efficiency.fixed,
        processes=processes,
    )
