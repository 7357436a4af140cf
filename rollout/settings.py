"""Settings of a rollout: how many episodes, how long each may be, and how to sample.

The settings are defined here, next to the code that uses them; run.toml is composed elsewhere.
Sampling is neutral except for the temperature, because the trainer scores with softmax(logits / T):
with a top-p it would train on a distribution that was never sampled from.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from fieldkit.errors import BadInput
from fieldkit.records import Sampling
from fieldkit.settings import Change, Choice, Follows, NoCondition, Unit, settings
from rollout.draw.rules import DRAWS
from rollout.envs.shell_protocol import PROTOCOLS


def neutral_sampling(temperature: float, max_tokens: int) -> Sampling:
    """Sample from the model's own distribution at `temperature`, at most `max_tokens` a turn."""
    return Sampling(temperature=temperature, max_tokens=max_tokens, top_p=1.0, top_k=0, min_p=0.0)


@settings("rollout")
class EpisodeSettings:
    """The limits of one episode, in evaluations and in rollouts."""

    temperature: Annotated[PositiveFloat, Le(2), NoCondition] = 1.0
    """T, the same for sampling and for training. An evaluation has its own."""
    max_turns: PositiveInt = 12
    """Turns an episode may take; the one that stops counts."""
    max_new_tokens: Annotated[PositiveInt, Unit("tokens")] = 96
    """Tokens one reply may have."""
    episode_seconds: Annotated[PositiveFloat, Unit("seconds")] = 60.0
    """Seconds that an episode's commands may take together; after that no further turn begins.
    Sampling does not count: its tokens are bounded, and its time depends on how many episodes share
    the engine, which must not end an episode."""
    max_model_len: Annotated[PositiveInt, Unit("tokens"), Follows("engine.max_model_len")] = 2048
    """Tokens of context that the engine serves, prompt and reply together."""
    protocol: Annotated[str, Choice(PROTOCOLS)] = "sentinel"
    """How a reply is read."""
    concurrency: Annotated[NonNegativeInt, Change.MACHINE] = 0
    """Episodes in flight at once; 0 is all of them."""

    def __post_init__(self) -> None:
        if self.max_model_len <= self.max_new_tokens:
            raise BadInput(
                f"rollout.max_model_len: {self.max_model_len} must be {self.max_new_tokens + 1} "
                "or more: a reply of rollout.max_new_tokens and a prompt"
            )

    @property
    def sampling(self) -> Sampling:
        return neutral_sampling(self.temperature, self.max_new_tokens)

    def at(self, temperature: float) -> EpisodeSettings:
        """The same limits at another temperature, as for evaluations."""
        limits = {f.name: getattr(self, f.name) for f in fields(EpisodeSettings)}
        return EpisodeSettings(**{**limits, "temperature": temperature})


@settings("rollout", retired={"late_temperature": None, "late_after": None})
class RolloutSettings(EpisodeSettings):
    """One training step's rollout: B tasks, K episodes of each."""

    tasks_per_step: PositiveInt = 8
    """B, the tasks of a step."""
    group_size: Annotated[int, Ge(2), Le(1000)] = 4
    """K, the episodes of each task. Their mean reward is the baseline, so K is at least 2."""
    draw: Annotated[str, Choice(DRAWS)] = "uniform"
    """Which tasks a step plays."""
    resample: NonNegativeInt = 0
    """How many more tasks a step may play, each in place of one whose attempts all pass or all
    fail. Training leaves those out, but they count as evidence about the pool (DAPO's dynamic
    sampling)."""
    run_seed: Annotated[int, Follows("run.seed")] = 0
    """The seed from which every task order and sampling seed of a run derives."""
