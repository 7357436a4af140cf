# /// script
# dependencies = ["verifiers==0.3.1"]
# ///
"""Guess a number from 1 to 10, as a verifiers (v0) environment."""

import random

import verifiers as vf
from datasets import Dataset


class Guess(vf.StatefulToolEnv):
    def __init__(self, **options):
        super().__init__(**options)
        self.add_tool(self.guess, args_to_skip=["game"])

    async def setup_state(self, state):
        state["game"] = {"number": random.randint(1, 10), "over": False, "reward": 0.0}
        return state

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "game": state["game"]}

    async def guess(self, number: int, game: dict) -> str:
        """Guess the number.

        Args:
            number: From 1 to 10.
        """
        if not 1 <= number <= 10:
            raise ValueError("the number is from 1 to 10")
        game["over"] = number == game["number"]
        game["reward"] += 1.0 if game["over"] else -0.1
        if game["over"]:
            return "Right."
        return "Higher." if number < game["number"] else "Lower."

    @vf.stop
    async def over(self, state):
        return state["game"]["over"]


async def reward(state) -> float:
    return state["game"]["reward"]


def rows(first, n):
    games = range(first, first + n)
    return Dataset.from_list([{"question": "Guess my number.", "answer": str(g)} for g in games])


def load_environment(train: int = 64, heldout: int = 32):
    return Guess(
        dataset=rows(0, train),
        eval_dataset=rows(train, heldout),
        rubric=vf.Rubric(funcs=[reward]),
        max_turns=10,
    )
