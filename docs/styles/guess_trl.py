"""Guess a number from 1 to 10, as a class that TRL's `environment_factory` takes."""

import random


class Guess:
    """Guess a number from 1 to 10."""

    def __init__(self) -> None:
        self.over = False

    def reset(self, **row) -> str:
        self.over, self._reward = False, 0.0
        self._number = random.randint(1, 10)
        return "Guess my number."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 1 to 10.
        """
        if not 1 <= number <= 10:
            raise ValueError("the number is from 1 to 10")
        self.over = number == self._number
        self._reward += 1.0 if self.over else -0.1
        if self.over:
            return "Right."
        return "Higher." if number < self._number else "Lower."

    def get_reward(self) -> float:
        return self._reward
