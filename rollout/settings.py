"""What a rollout is asked to do: how many episodes, how long each, and how to sample.

The numbers live here, beside the code that obeys them; run.toml is composed from them elsewhere.
Sampling is neutral but for the temperature, because the trainer scores with softmax(logits / T)
and nothing else: a top-p here would train on a distribution that was never sampled from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from fieldkit.errors import BadInput
from fieldkit.records import Action, Sampling
from rollout.envs.protocol import named_protocol

SMALLEST_GROUP = 2
"""A rollout that has no sibling has no baseline, so it has no advantage."""


def neutral_sampling(temperature: float, max_tokens: int) -> Sampling:
    """Sample from the model's own distribution at `temperature`, at most `max_tokens` a turn."""
    return Sampling(temperature=temperature, max_tokens=max_tokens, top_p=1.0, top_k=0, min_p=0.0)


@dataclass(frozen=True)
class EpisodeSettings:
    """The limits of one episode. Every arm of an evaluation and every rollout is played by them."""

    temperature: float = 1.0
    """T, the same when sampling and when training."""
    max_turns: int = 12
    """Turns an episode may take; the one that stops counts."""
    max_new_tokens: int = 96
    """Tokens one reply may have."""
    episode_seconds: float = 60.0
    """Seconds that an episode's commands may take together before no further turn is begun.
    Sampling is not counted: it is bounded in tokens, and how long it takes depends on how many
    episodes share the engine, which must not end any of them."""
    max_model_len: int = 2048
    """Tokens of context the engine serves; prompt and reply together."""
    protocol: str = "sentinel"
    """How a reply is read: a name in `rollout.protocol.PROTOCOLS`."""
    concurrency: int = 0
    """Episodes in flight at once; 0 is all of them."""

    def __post_init__(self) -> None:
        _finite_above_zero("temperature", self.temperature)
        _finite_above_zero("episode_seconds", self.episode_seconds)
        _at_least("max_turns", self.max_turns, 1)
        _at_least("max_new_tokens", self.max_new_tokens, 1)
        _at_least("max_model_len", self.max_model_len, self.max_new_tokens + 1)
        _at_least("concurrency", self.concurrency, 0)
        named_protocol(self.protocol)

    @property
    def sampling(self) -> Sampling:
        return neutral_sampling(self.temperature, self.max_new_tokens)

    @property
    def parse(self) -> Callable[[str], Action]:
        return named_protocol(self.protocol)

    def at(self, temperature: float) -> EpisodeSettings:
        """The same limits at another temperature: how a run's adapters are evaluated."""
        limits = {f.name: getattr(self, f.name) for f in fields(EpisodeSettings)}
        return EpisodeSettings(**{**limits, "temperature": temperature})


@dataclass(frozen=True)
class RolloutSettings(EpisodeSettings):
    """One training step's rollout: B tasks, K episodes of each."""

    tasks_per_step: int = 8
    """B, the tasks of a step."""
    group_size: int = 4
    """K, the episodes of each task; their mean reward is the baseline."""
    run_seed: int = 0
    """What every task order and sampling seed of a run derives from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("tasks_per_step", self.tasks_per_step, 1)
        _at_least("group_size", self.group_size, SMALLEST_GROUP)


def _finite_above_zero(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"rollout.{key}: {value} must be a finite number above 0")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise BadInput(f"rollout.{key}: {value} must be {least} or more")
