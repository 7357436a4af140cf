"""Reward functions as TRL's trainers take them, asked about one attempt at a time.

A function gets `prompts`, `completions`, `environments` and every column of the row, each as a list
of one, and gives a list of one: a number, or None where it does not apply. It may be a coroutine.
Anything else is an error that names the function, never a reward. One that raises, or takes too
long, is a broken grader, as a broken world is: the episode is played again, and then the phase
fails. One that gives what is no number is bad input: it will give that again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.grade import RewardPart
from rollout.envs.base import Message
from rollout.envs.in_thread import PinnedThread, asked
from rollout.envs.user_code import load

OWN = "get_reward"
"""The method of an environment that gives one more reward, which is called `reward`."""


@dataclass(frozen=True)
class RewardFunction:
    """One function and what its values count."""

    name: str
    call: Callable[..., Any]
    weight: float

    async def of(
        self,
        prompt: Sequence[Message],
        completion: Sequence[Message],
        environment: Any,
        row: Mapping[str, Any],
        seconds: float,
        where: str,
        thread: PinnedThread | None = None,
    ) -> RewardPart:
        """What it says of one attempt, asked in the environment's thread. Raises as `asked`, and
        `BadInput` that begins with `where` for what is no reward."""
        given = {
            "prompts": [list(prompt)],
            "completions": [list(completion)],
            "environments": [environment],
            **{key: [value] for key, value in row.items() if key != "prompt"},
        }
        what = f"{where}: reward function {self.name}"
        values = await asked(self.call, given, seconds, what, thread)
        if not isinstance(values, Sequence) or len(values) != 1:
            raise BadInput(f"{what}: gave {values!r:.80} for one attempt, expected a list of one")
        return RewardPart(self.name, checked(values[0], what), self.weight)


def checked(value: Any, what: str) -> float | None:
    """A value that a reward may have. Raises `BadInput` that begins with `what`."""
    if value is None:
        return None
    if not hasattr(value, "__float__"):
        raise BadInput(f"{what}: gave {value!r:.80} ({type(value).__name__}), expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise BadInput(f"{what}: gave {number}, which is no reward")
    return number


def reward_functions(
    weights: Mapping[str, float], root: Path, where: str
) -> tuple[RewardFunction, ...]:
    """The functions of `rewards` in `[envs.NAME]`. Raises `BadInput` that begins with `where`."""
    found = []
    for use, weight in weights.items():
        if use == OWN:
            continue
        call = load(use, root, f"{where}.rewards")
        if not callable(call):
            raise BadInput(f"{where}.rewards: {use!r} is no function")
        found.append(RewardFunction(use.rpartition(":")[2], call, weight))
    names = [f.name for f in found]
    if twice := [n for n in names if names.count(n) > 1]:
        raise BadInput(f"{where}.rewards: two functions are called {twice[0]!r}; rename one")
    return tuple(found)
