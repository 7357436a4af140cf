"""Two games behind one class, as TRL's guide to OpenEnv has its multi-environment example: a column
of the row says which is played, all tools are there in both, and each game has a reward function
that does not apply to the other. It has no constructor, which TRL allows."""

import random
from typing import Any

WIDTH, HEIGHT = 5, 4


class TwoGames:
    def reset(self, **row: Any) -> str:
        self.active = row.get("env", "word")
        self.reward, self.done = 0.0, False
        if self.active == "word":
            self.secret, self._told = row.get("secret", "crane"), 0
            self._history = "Guess the word of five letters."
            return self._new()
        self._ball, self._row, self._paddle = random.randrange(1000) % WIDTH, 0, WIDTH // 2
        return self._board()

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: Five letters.

        Returns:
            For each letter G (right), Y (elsewhere) or X (nowhere).
        """
        self._require("word")
        if len(word) != len(self.secret):
            raise ValueError(f"{word} has {len(word)} letters, not {len(self.secret)}")
        pairs = zip(word, self.secret, strict=True)
        marks = ["G" if a == b else "Y" if a in self.secret else "X" for a, b in pairs]
        self.reward = marks.count("G") / len(marks)
        self.done = word == self.secret
        self._history += f"\n{' '.join(word.upper())}\n{' '.join(marks)}"
        return self._new()

    def move(self, direction: str) -> str:
        """Move the paddle, while the ball falls by one row.

        Args:
            direction: left or right.
        """
        self._require("catch")
        self._paddle += {"left": -1, "right": 1}[direction]
        return self._fall()

    def stay(self) -> str:
        """Let the ball fall by one row."""
        self._require("catch")
        return self._fall()

    def _require(self, game: str) -> None:
        if self.active != game:
            raise ValueError(f"This is not the game of {game}.")
        if self.done:
            raise ValueError("Game over.")

    def _new(self) -> str:
        """What the history has more than was told before."""
        told, self._told = self._told, len(self._history)
        return self._history[told:]

    def _fall(self) -> str:
        self._row += 1
        self.done = self._row == HEIGHT - 1
        if self.done:
            self.reward = 1.0 if self._paddle == self._ball else -1.0
        return self._board()

    def _board(self) -> str:
        return f"ball: row {self._row}, column {self._ball}; paddle: column {self._paddle}"


def word_reward(environments: list[TwoGames], **columns: Any) -> list[float | None]:
    return [e.reward if e.active == "word" else None for e in environments]


def catch_reward(environments: list[TwoGames], **columns: Any) -> list[float | None]:
    return [
        None if e.active != "catch" else max(e.reward, 0.0) if e.done else 0.0 for e in environments
    ]
