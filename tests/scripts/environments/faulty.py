"""Environments with one fault each, in TRL's style; `Sound`, `Holds` and `Waits` have none,
and `Rolls` leaves to luck what a tool answers."""

import asyncio
import os
import random
import re
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Literal, TypedDict

shared: list[str] = []
answers: asyncio.Queue[str] = asyncio.Queue()
"""Belongs to the event loop in which it is waited for first, like a client of the module."""


class Sound:
    def __init__(self) -> None:
        self.over = False

    def reset(self, **row: Any) -> str:
        self.over, self._secret, self._tries = False, random.randint(1, 6), 0
        return "Find a number from 1 to 6."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 1 to 6.
        """
        self._tries += 1
        self.over = self.over or number == self._secret
        return "right" if self.over else "wrong"

    def read(self) -> str:
        """Read how many guesses there were."""
        return str(self._tries)

    def get_reward(self) -> float:
        return float(self.over)


class Hangs(Sound):
    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: Any.
        """
        while True:
            pass  # it hangs here


class HangsInC(Sound):
    def get_reward(self) -> float:
        return float(bool(re.match("(a+)+$", "a" * 40 + "b")))  # it hangs in C here


class Dies(Sound):
    def get_reward(self) -> float:
        print("no more")
        os._exit(3)


class Needs(Sound):
    def __init__(self, size: int) -> None:
        self.size = size


class Chance(Sound):
    def read(self) -> str:
        """Read the clock."""
        return str(time.perf_counter())  # another one each time


class Begins(Sound):
    def reset(self, **row: Any) -> str:
        super().reset(**row)
        return f"It is {time.perf_counter()}."


class Shares(Sound):
    def reset(self, **row: Any) -> str:
        shared.clear()
        return "Look."

    def read(self) -> str:
        """Read how often anybody has read."""
        shared.append("x")
        return str(len(shared))


class Keeps(Sound):
    count = 0

    def read(self) -> str:
        """Read how often this was read."""
        self.count += 1
        return str(self.count)


class Raises(Sound):
    def reset(self, **row: Any) -> str:
        raise KeyError("question")  # it raises here


class NoNumber(Sound):
    def get_reward(self) -> float:
        return float("nan")


class Untyped(Sound):
    def guess(self, number) -> str:  # type: ignore[no-untyped-def]
        """Guess."""
        return str(number)


class SaysList(Sound):
    def reset(self, **row: Any) -> list[str]:  # type: ignore[override]
        return ["Find a number."]


class Shows(Sound):
    def read(self) -> list[dict[str, str]]:  # type: ignore[override]
        """Look."""
        return [{"type": "image", "image": "a.png"}]


class Asked(Sound):
    def _ended(self) -> bool:
        return self.over


class Holds(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.log = sqlite3.connect(":memory:")  # works in this thread alone


class Timed(Sound):
    def read(self) -> str:
        """Read, but not for long."""
        signal.signal(signal.SIGALRM, lambda *_: None)
        return "1"


class Rolls(Sound):
    def read(self) -> str:
        """Roll a die."""
        return str(random.randint(1, 6))


class Waits(Sound):
    async def read(self) -> str:  # type: ignore[override]
        """Wait for an answer."""
        asyncio.get_running_loop().call_soon(answers.put_nowait, "here")
        return await answers.get()


class Sets(Sound):
    def read(self) -> str:
        """Read some words."""
        return " ".join({"a", "b", "c", "dd", "eee", str(self._tries)})


class Once(Sets):
    """Can be loaded by one process at a time."""

    def __init__(self) -> None:
        super().__init__()
        if os.getppid() != self._first():
            raise OSError("it is taken")

    def _first(self) -> int:
        return int(os.environ.setdefault("FAULTY_ONCE", str(os.getppid())))


class Tells(Sound):
    said: int
    """Words of what `reset` shows."""
    answered = 1
    """The same of what `read` answers."""

    def reset(self, **row: Any) -> str:
        super().reset(**row)
        return "word " * self.said

    def read(self) -> str:
        """Read a text."""
        return "word " * self.answered


class TellsMuch(Tells):
    said = 200


class AnswersMuch(Tells):
    said, answered = 1, 200


class OneStep:
    def reset(self, **row: Any) -> str:
        return "Act."

    def step(self, action: str) -> str:
        """Act.

        Args:
            action: What to do.
        """
        return "done"

    def get_reward(self) -> float:
        return 0.0


class Gives(Sound):
    def get_reward(self) -> float:
        return 1.0


class Seldom(Sound):
    def get_reward(self) -> float | None:  # type: ignore[override]
        return 1.0 if self.over else None


class Way(Enum):
    UP = "up"
    DOWN = "down"


class Place(TypedDict):
    x: int
    y: int


@dataclass
class Size:
    high: int


class Typed(Sound):
    def guess(self, number: int, way: Way | None = None) -> str:
        """Guess.

        Args:
            number: Any.
            way: Where to look.
        """
        return "wrong"

    def put(self, places: list[Place], sizes: dict[str, Size], paint: date) -> str:
        """Put something.

        Args:
            places: Where.
            sizes: How large.
            paint: When.
        """
        return "there"

    def fits(self, kind: Literal["a"], more: list[dict[str, Any]], some: int | str | None) -> str:
        """Do what a schema shows.

        Args:
            kind: One.
            more: Any.
            some: Either.
        """
        return "good"


class Yields(Sound):
    def read(self) -> Iterator[str]:  # type: ignore[override]
        """Read line by line."""
        yield "1"


class YieldsLater(Sound):
    async def read(self) -> AsyncIterator[str]:  # type: ignore[override]
        """Read line by line."""
        yield "1"


class Narrow(Sound):
    def reset(self, question: str) -> str:  # type: ignore[override]
        return question


class Silent(Sound):
    def reset(self, **row: Any) -> None:  # type: ignore[override]
        return None


class Unpaid(Sound):
    get_reward = None  # type: ignore[assignment]


class ToolRaises(OneStep):
    def step(self, action: str) -> str:
        """Act.

        Args:
            action: What to do.
        """
        raise ValueError("never")  # every time
