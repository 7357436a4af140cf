"""An OpenEnv server for 256 episodes at once, of which some stand still until another lets them go.

It runs in .venv-openenv, where `openenv` is.
"""

import threading
from typing import Any, Literal

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

OPEN = threading.Event()


class PassAction(Action):  # type: ignore[misc]  # openenv is elsewhere
    """Walk on, wait at the gate, or open it."""

    how: Literal["walk", "wait", "open"]


class PassObservation(Observation):  # type: ignore[misc]  # openenv is elsewhere
    text: str


class Gate(Environment):  # type: ignore[misc]  # openenv is elsewhere
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> PassObservation:
        self._state = State(episode_id=episode_id)
        return PassObservation(text="A gate.")

    def step(
        self, action: PassAction, timeout_s: float | None = None, **kwargs: Any
    ) -> PassObservation:
        self._state.step_count += 1
        if action.how == "wait":
            OPEN.wait()
        if action.how == "open":
            OPEN.set()
        done = self._state.step_count == 5 or action.how == "wait"
        return PassObservation(text=f"step {self._state.step_count}", reward=1.0, done=done)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Gate, PassAction, PassObservation, env_name="gate", max_concurrent_envs=256)
