"""A world that a stranger might bring: guess a number, with no sandbox and nothing on disk.

The number follows from the task and the seed. Every guess is answered with which way to go; the
right one ends the game. Nothing of it is known to the house but the one line that registers it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import Action, ActionKind, StopReason, Task
from rollout.envs.base import Environment, Opening, Reply, Site, Step
from rollout.envs.registry import ENVIRONMENTS

NAME = "guessing"
HIGHEST = 8


def guessing_task(number: int) -> Task:
    return Task(f"guess-{number}", NAME, f"Game {number}: guess the number.", {"secret": number})


def opening(task: Task) -> Opening:
    rules = {"role": "system", "content": f"Reply with one number from 1 to {HIGHEST}."}
    return Opening((rules, {"role": "user", "content": task.prompt}))


class GuessingWorld:
    def __init__(self, site: Site) -> None:
        self.secret = 0
        self.won = False
        self.closed = False

    async def reset(self, task: Task, seed: int) -> Opening:
        self.secret = int(task.info["secret"])
        return opening(task)

    async def step(self, reply: Reply) -> Step:
        if not reply.text.strip().isdigit():
            told = ({"role": "user", "content": "That is no number."},)
            return Step(Action(ActionKind.NONE, ""), told)
        guess = int(reply.text)
        self.won = guess == self.secret
        way = "right" if self.won else "higher" if guess < self.secret else "lower"
        return Step(
            Action(ActionKind.RUN, reply.text.strip()),
            ({"role": "user", "content": way},),
            calls=1,
            reward=float(self.won) - 0.25,
            stop=StopReason.ENV_DONE if self.won else None,
        )

    async def grade(self) -> Grade:
        return Grade((AssertionResult("won", "", self.won, "" if self.won else "never guessed"),))

    async def close(self) -> None:
        self.closed = True


GUESSING = Environment(
    make=GuessingWorld,
    opening=opening,
    faults=lambda task, where: [] if task.info.get("secret") else ["info.secret is missing"],
    oracle=lambda task: [str(task.info["secret"])],
    random_reply=lambda task, shown, rng: str(rng.randint(1, HIGHEST)),
)


@contextmanager
def registered() -> Iterator[None]:
    ENVIRONMENTS.register(NAME, GUESSING)
    try:
        yield
    finally:
        ENVIRONMENTS.remove(NAME)


def bisect(conversation: str, turn: int, seed: int) -> str:
    """A policy that halves what is left; odd seeds let it begin with a wild guess."""
    if turn == 0 and seed % 2:
        return str(random.Random(seed).randint(1, HIGHEST))
    low, high = 1, HIGHEST
    said = [line for line in conversation.splitlines() if line.strip()]
    for guess, way in zip(said, said[2:], strict=False):
        if guess.isdigit() and way in ("higher", "lower"):
            low, high = (int(guess) + 1, high) if way == "higher" else (low, int(guess) - 1)
    return str((low + high) // 2)
