"""An OpenEnv server with a small game of its own: guess a number from 1 to 10.

[envs.guess]
serve = "docs/openenv/guess_server.py:app"
python = ".venv-openenv/bin/python"
"""

import random

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class GuessAction(Action):
    """Guess the number."""

    number: int = Field(description="from 1 to 10")


class GuessObservation(Observation):
    text: str


class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True  # every session has an object of its own

    def __init__(self):
        super().__init__()
        self._state = State()
        self._number = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id)
        self._number = random.Random(seed).randint(1, 10)
        return GuessObservation(text="Guess my number.")

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        if not 1 <= action.number <= 10:
            raise ValueError("the number is from 1 to 10")
        if action.number == self._number:
            return GuessObservation(text="Right.", reward=1.0, done=True)
        hint = "Higher." if action.number < self._number else "Lower."
        return GuessObservation(text=hint, reward=-0.1)

    @property
    def state(self):
        return self._state


app = create_app(Guess, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=64)
one = create_app(Guess, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=1)
many = create_app(Guess, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=256)
