"""Predictions for a box: a step's seconds, where they bend, and what to buy next.

What to buy is found by trying: each figure of the box is doubled, and the step is predicted again.
"""

from __future__ import annotations

import itertools
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
class Case:
    """A step's work, done with a model on a box. way: as the run is set; what does not fit side by
    side changes it."""

    work: StepWork
    shape: ModelShape
    box: Box
    efficiency: Efficiency
    way: Way

    @property
    def room(self) -> Room:
        """What a device has to hold."""
        seats, lora = self.way.seats, self.way.lora_parameters
        return room(self.work, self.shape, self.box, seats=seats, lora_parameters=lora)

    def time(self, needed: Room | None = None) -> StepTime | None:
        """The step's seconds; None where the model does not fit a device.

        Where engine and trainer do not fit side by side, the engine is started again and the
        trainer loaded again for each step, as the loop does.
        """
        needed = needed or self.room
        if not needed.fits:
            return None
        way = replace(self.way, seats=needed.seats, checkpointing=needed.checkpointing)
        if not needed.side_by_side:
            way = replace(way, restart=True, load=True)
        return step_time(self.work, self.shape, self.box, self.efficiency, way)

    def with_attempts(self, n: int) -> Case:
        """The same with so many attempts a step, and a seat for each (`engine.max_num_seqs`)."""
        work = self.work.times(n / self.work.episodes)
        return replace(self, work=work, way=replace(self.way, seats=max(self.way.seats, n)))

    def by_attempts(self) -> list[tuple[int, StepTime]]:
        """Attempts a step, and the step's time; as far as they fit."""
        found = [(n, self.with_attempts(n).time()) for n in ATTEMPTS]
        return [(n, time) for n, time in found if time is not None]

    def by_machines(self) -> list[tuple[int, float]]:
        """Machines, and the step's seconds; as far as they fit."""
        found = [(n, replace(self, box=replace(self.box, machines=n)).time()) for n in MACHINES]
        return [(n, time.total) for n, time in found if time is not None]

    def cheap_attempts(self) -> int:
        """Attempts a step until which twice as many are cheap: where a step's seconds bend. The
        last of `ATTEMPTS` where they bend at none."""
        curve = self.by_attempts()
        for (n, time), (_, twice) in itertools.pairwise(curve):
            if twice.total > CHEAP * time.total:
                return n
        return curve[-1][0]

    def machines_that_pay(self) -> int:
        """The number of machines from which twice as many save less than `WORTH` of a step."""
        curve = self.by_machines()
        for (n, seconds), (_, with_twice) in itertools.pairwise(curve):
            if with_twice > (1 - WORTH) * seconds:
                return n
        return curve[-1][0]

    def purchases(self) -> tuple[Purchase, ...]:
        """What twice of each figure of the box would give, best first."""
        found = []
        for key, what in TO_BUY.items():
            if (time := replace(self, box=self.box.twice(key)).time()) is not None:
                found.append(Purchase(what, time.total))
        return tuple(sorted(found, key=lambda purchase: purchase.seconds))


TO_BUY = {
    "memory_gb_s": "a device with twice the memory bandwidth",
    "tflops": "a device with twice the FLOP/s",
    "memory_gb": "a device with twice the memory",
    "devices": "twice the devices in a machine",
    "machines": "twice the machines",
    "disk_gb_s": "a disk twice as fast",
}
"""The figures of a box that are doubled, and what one would buy for it."""


@dataclass(frozen=True)
class Prediction:
    """What a step would take on a box. time: None where the model does not fit a device.

    bend: attempts in flight on one device from which decoding is bound by FLOP/s. purchases: best
    first. machines_that_pay, cheap_attempts: as in `Case`.
    """

    room: Room
    time: StepTime | None
    bend: float
    purchases: tuple[Purchase, ...]
    machines_that_pay: int
    cheap_attempts: int


def predict(case: Case) -> Prediction:
    """Everything that is predicted of a step on a box."""
    needed = case.room
    if (time := case.time(needed)) is None:
        return Prediction(needed, None, 0.0, (), 1, 0)
    return Prediction(
        needed,
        time,
        bend(case.shape, case.box, case.efficiency, case.work.context / 2),
        case.purchases(),
        case.machines_that_pay(),
        case.cheap_attempts(),
    )


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
    most = f"The largest part is {WORDS[name]}, {seconds:.1f} of {time.total:.1f} s (predicted)"
    best = prediction.purchases[0]
    if best.seconds > (1 - WORTH) * time.total:
        return (
            f"{most}; twice of no figure would save a tenth of the step, so buy nothing:"
            " use what is there for more attempts a step."
        )
    return f"{most}; buy {best.what}: {best.seconds:.1f} s a step (predicted)."


WORDS = {
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
