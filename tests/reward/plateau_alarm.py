"""How often a night that still rises is taken for a plateau, and how late a plateau is seen.

`python -m tests.reward.plateau_alarm` plays made-up nights: a curve of the reward with the noise of
steps of 32 episodes, looked at after every step.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reward.plateau import rise

NOISE = 0.08
"""Standard deviation of a step's mean reward around its curve, in the committed default night."""

Curve = Callable[[int], float]
"""The expected reward of a step."""


def habit(middle: float, width: float) -> Curve:
    """A habit that is given up around step `middle`, from 0.18 to 0.52 as in a default night."""
    return lambda step: 0.18 + 0.34 / (1 + math.exp((middle - step) / width))


RISING: Mapping[str, Curve] = {
    "a steady rise by 0.3 in 100 steps": lambda step: 0.2 + 0.003 * step,
    "a steady rise by 0.15 in 100 steps": lambda step: 0.2 + 0.0015 * step,
    "nothing learned": lambda step: 0.4,
}
SLOWED: Mapping[str, Curve] = {
    "a habit done by step 12, then a slow rise by 0.36 in 100 steps": lambda step: (
        0.45 + 0.5 / (1 + math.exp((8 - step) / 1.5)) + 0.0036 * max(0, step - 12)
    ),
}
"""Rises that go on, by less than a quarter of the whole gain in a quarter of the night."""
PLATEAUS: Mapping[str, Curve] = {
    "a default night, done by step 14": habit(9.5, 1.2),
    "a slow one, done by step 70": habit(40, 10),
}


@dataclass(frozen=True)
class Alarms:
    """Of `nights`, those that a plateau ended before `steps`, and the median step of their end."""

    nights: int
    steps: int
    ended: int
    median: float | None

    @property
    def share(self) -> float:
        return self.ended / self.nights


def alarms(curve: Curve, steps: int, nights: int, seed: int = 0) -> Alarms:
    """What the rule does in so many nights of this curve."""
    rng = random.Random(seed)
    ends = [end for _ in range(nights) if (end := _end(curve, steps, rng)) is not None]
    return Alarms(nights, steps, len(ends), statistics.median(ends) if ends else None)


def _end(curve: Curve, steps: int, rng: random.Random) -> int | None:
    rewards: list[float] = []
    for step in range(1, steps + 1):
        rewards.append(rng.gauss(curve(step), NOISE))
        found = rise(rewards)
        if found is not None and found.over:
            return step
    return None


def main() -> None:
    """Print a line for each curve."""
    for name, curve in {**RISING, **SLOWED, **PLATEAUS}.items():
        found = alarms(curve, 100, 500)
        when = "" if found.median is None else f", at step {found.median:g} in the median"
        print(f"{name}: {100 * found.share:.1f} % of {found.nights} nights end before 100{when}")


if __name__ == "__main__":
    main()
