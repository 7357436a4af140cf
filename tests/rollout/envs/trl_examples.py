"""Environments in the forms that TRL's guide has: a class that owns its data, has no constructor
and pays itself; functions as tools, one of them a coroutine, with a reward function."""

import random
from typing import Any


class Increment:
    def reset(self, **row: Any) -> str:
        self.counter = 0
        self.target = random.randint(2, 4)
        return f"Increment the counter to {self.target}."

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: What to add to it.

        Returns:
            Where the counter is then.
        """
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        return 1.0 - abs(self.counter - self.target) / self.target


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        Their product.
    """
    return a * b


async def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        Their sum.
    """
    return a + b


ARITHMETIC = [multiply, add]


def right(completions: list[Any], answer: list[int], **columns: Any) -> list[float]:
    """Whether the last reply has the answer."""
    pairs = zip(completions, answer, strict=True)
    return [float(str(a) in said[-1]["content"]) for said, a in pairs]
