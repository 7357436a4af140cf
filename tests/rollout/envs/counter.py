"""A class as TRL's environment_factory takes it: the policy counts up to a target."""

import random
from collections.abc import Callable


class Counter:
    """Count to the target; the further away at the end, the less it is worth."""

    def __init__(self) -> None:
        self.value = 0
        self.target = 0
        self.done = False

    def reset(self, target: int = 3, **row: object) -> str:
        self.value, self.target, self.done = 0, target, False
        return f" The lucky number is {random.randrange(10**6)}."

    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: how much to add
        """
        if amount < 0:
            raise ValueError("the counter only goes up")
        self.value += amount
        self.done = self.value >= self.target
        return f"the counter is at {self.value}"

    async def peek(self) -> dict[str, int]:
        """Say where the counter is."""
        return {"value": self.value}

    def get_reward(self) -> float:
        return 1.0 - abs(self.target - self.value) / max(1, self.target)


def short(completions: list[list[dict[str, str]]], **columns: object) -> list[float]:
    return [-float(sum(m["role"] == "assistant" for m in c)) for c in completions]


async def only_even(environments: list[Counter], **columns: object) -> list[float | None]:
    return [None if e.target % 2 else 1.0 for e in environments]


def watched(
    completions: list[list[dict[str, str]]],
    log_metric: Callable[[str, float], None],
    **columns: object,
) -> list[float]:
    log_metric("messages", len(completions[0]))
    return [0.0 for _ in completions]
