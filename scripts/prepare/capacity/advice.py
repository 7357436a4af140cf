"""Predictions for a box: a step's seconds, where they bend, and what to buy next.

What to buy is found by trying: each figure of the box is doubled, and the step is predicted again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scripts.prepare.capacity.box import Box
from scripts.prepare.capacity.device_memory import Room, room
from scripts.prepare.capacity.model_shape import ModelShape
from scripts.prepare.capacity.step_time import Efficiency, StepTime, Way, bend, step_time
from scripts.prepare.capacity.step_work import StepWork

ATTEMPTS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Attempts a step for which a curve is drawn."""

MACHINES = (1, 2, 4, 8, 16, 32)
"""Machines for which a curve is drawn."""

CHEAP = 1.5
"""Twice the attempts are cheap where the step takes at most so many times as long."""

WORTH = 0.1
"""Share of a step's seconds that twice of something has to save to be worth buying."""


@dataclass(frozen=True)
class Purchase:
    """Something to buy, and the step's seconds with it."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """What a step would take on a box. time: None where the model does not fit a device.

    bend: episodes in flight on one device from which decoding is bound by FLOP/s. purchases: best
    first. machines_that_pay, cheap_attempts: as the functions of these names.
    """

    room: Room
    way: Way
    time: StepTime | None
    bend: float
    purchases: tuple[Purchase, ...]
    machines_that_pay: int
    cheap_attempts: int


def predict(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way
) -> Prediction:
    """The prediction for a box. Where engine and trainer do not fit side by side, the engine is
    started again and the trainer loaded again for each step, as the loop does."""
    needed = room(work, shape, box, seats=way.seats, lora_parameters=way.lora_parameters)
    if not needed.side_by_side:
        way = replace(way, restart=True, load=True)
    if not needed.fits:
        return Prediction(needed, way, None, 0.0, (), 1, 0)
    time = step_time(work, shape, box, efficiency, way)
    return Prediction(
        needed,
        way,
        time,
        bend(shape, box, efficiency, work.context / 2),
        _purchases(work, shape, box, efficiency, way, needed),
        machines_that_pay(work, shape, box, efficiency, way),
        cheap_attempts(work, shape, box, efficiency, way),
    )


def _purchases(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way, needed: Room
) -> tuple[Purchase, ...]:
    boxes = {
        "a device with twice the memory bandwidth": replace(box, memory_gb_s=2 * box.memory_gb_s),
        "a device with twice the FLOP/s": replace(box, tflops=2 * box.tflops),
        "twice the devices in a machine": replace(box, devices=2 * box.devices),
        "twice the machines": replace(box, machines=2 * box.machines),
        "a disk twice as fast": replace(box, disk_gb_s=2 * box.disk_gb_s),
    }
    found = [
        Purchase(what, step_time(work, shape, other, efficiency, way).total)
        for what, other in boxes.items()
    ]
    if not needed.side_by_side and needed.engine + needed.trainer <= 2 * needed.there:
        stays = replace(way, restart=False, load=False)
        found.append(
            Purchase(
                "a device with twice the memory",
                step_time(work, shape, box, efficiency, stays).total,
            )
        )
    return tuple(sorted(found, key=lambda purchase: purchase.seconds))


def machines_that_pay(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way
) -> int:
    """The number of machines from which twice as many save less than `WORTH` of a step."""
    curve = by_machines(work, shape, box, efficiency, way)
    for (n, seconds), (_, with_twice) in itertools.pairwise(curve):
        if with_twice > (1 - WORTH) * seconds:
            return n
    return curve[-1][0]


def by_machines(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way
) -> list[tuple[int, float]]:
    """Machines, and the step's seconds."""
    boxes = [replace(box, machines=n) for n in MACHINES]
    return [(b.machines, step_time(work, shape, b, efficiency, way).total) for b in boxes]


def by_attempts(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way
) -> list[tuple[int, StepTime]]:
    """Attempts a step, and the step's time. The engine gets a seat for each (raise
    `engine.max_num_seqs`), and the memory is not looked at."""
    found = []
    for n in ATTEMPTS:
        seats = max(way.seats, n)
        more = work.times(n / work.episodes)
        found.append((n, step_time(more, shape, box, efficiency, replace(way, seats=seats))))
    return found


def cheap_attempts(
    work: StepWork, shape: ModelShape, box: Box, efficiency: Efficiency, way: Way
) -> int:
    """Attempts a step up to which twice as many are cheap: where a step's seconds bend."""
    curve = by_attempts(work, shape, box, efficiency, way)
    for (n, time), (_, twice) in itertools.pairwise(curve):
        if twice.total > CHEAP * time.total:
            return n
    return curve[-1][0]


def next_purchase(prediction: Prediction) -> str:
    """What to buy next, in a sentence with predicted seconds."""
    time = prediction.time
    if time is None:
        return (
            f"Buy memory: one device has {prediction.room.there / 1e9:.0f} GB, and the model needs"
            f" {max(prediction.room.engine, prediction.room.trainer) / 1e9:.0f}"
            " (engine.tensor_parallel and trainer.shard_base divide it among devices, which is not"
            " predicted)."
        )
    name, seconds = max(time.parts.items(), key=lambda part: part[1])
    most = f"The largest part is {words(name)}, {seconds:.1f} of {time.total:.1f} s (predicted)"
    best = prediction.purchases[0]
    if best.seconds > (1 - WORTH) * time.total:
        return (
            f"{most}; twice of no figure would save a tenth of the step, so buy nothing:"
            " use what is there for more attempts a step."
        )
    return f"{most}; buy {best.what}: {best.seconds:.1f} s a step (predicted)."


_WORDS = {
    "decode": "decoding",
    "prefill": "reading prompts and observations",
    "worlds": "commands in the sandbox",
    "reference": "the reference pass",
    "gradient": "the gradient",
    "canary": "the canary",
    "trainer_load": "loading the trainer",
    "engine_restart": "restarting the engine",
    "transfer": "sending the adapter",
    "fixed": "what no device makes faster (programs start, files are written)",
}


def words(part: str) -> str:
    """A part of a step in words."""
    return _WORDS[part]


def parts() -> Sequence[str]:
    """The parts of a step, in its order."""
    return tuple(_WORDS)
