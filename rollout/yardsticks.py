"""Policies without a model: doing nothing, the oracle, and replies drawn at random.

They put a score into proportion: no policy does better than the oracle, and one that does no better
than doing nothing has learned nothing. They are played in the same worlds by the same loop as a
model. A world's `Environment` knows the replies for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.records import Task
from fieldkit.registry import Registry
from rollout.policies import Policy, RecitedPolicy, SampledPolicy, WrittenSampler
from rollout.settings import EpisodeSettings

if TYPE_CHECKING:  # `grpo next` needs only the names, and the worlds are slow to import
    from reward.reward import Reward
    from rollout.envs.base import Environment, World
    from rollout.player import Player
    from rollout.transcript import ChatRenderer

# A yardstick's episode takes milliseconds and one process. With more than this many at once the
# processes wait for a core while their time limits run.
_AT_ONCE = 16


@dataclass(frozen=True)
class Yardstick:
    """A policy for comparison."""

    policy: Callable[[Task, EpisodeSettings, Callable[[], ChatRenderer]], Policy]
    """Makes the policy of one episode; the last argument loads a tokenizer if it is needed. Raises
    `BadInput` for a task that it cannot play."""
    evaluated: bool = True
    """Whether it is an arm of every run's evaluation."""


def _environment(task: Task) -> Environment:
    """As `rollout.envs.registry.environment_of`."""
    from rollout.envs import registry

    return registry.environment_of(task)


def oracle_replies(task: Task) -> Sequence[str]:
    """The replies that solve the task. Raises `MissingOracle` if none are known."""
    oracle = _environment(task).oracle
    if oracle is None:
        from rollout.envs.base import MissingOracle

        raise MissingOracle(f"task {task.task_id}: env {task.env!r} has no oracle")
    return oracle(task)


def oracle_when_asked(task: Task) -> Iterator[str]:
    """The same, asked of the environment with the first reply, because its author's code may take
    its time."""
    yield from oracle_replies(task)


def has_oracle(task: Task) -> bool:
    """Whether there are replies that are known to solve the task."""
    from rollout.envs.base import MissingOracle

    try:
        return bool(oracle_replies(task))
    except MissingOracle:
        return False


def _random(task: Task, settings: EpisodeSettings, load: Callable[[], ChatRenderer]) -> Policy:
    draw = _environment(task).random_reply
    if draw is None:
        raise BadInput(f"task {task.task_id}: env {task.env!r} has no random replies")
    renderer = load()
    sampler = WrittenSampler(
        lambda seed, ids: draw(task, renderer.decode(ids), random.Random(seed)), renderer
    )
    return SampledPolicy(sampler, renderer, settings)


def _no_tokenizer() -> ChatRenderer:
    raise RuntimeError("this yardstick has ids, so whoever plays it has to give a tokenizer")


DO_NOTHING, ORACLE, RANDOM = "do-nothing", "oracle", "random"

YARDSTICKS: Registry[Yardstick] = Registry("yardstick")
"""By the names of their arms, in the order of tables. In their records the name takes the place of
the adapter's hash."""
YARDSTICKS.register(DO_NOTHING, Yardstick(lambda task, *_: RecitedPolicy(())))
YARDSTICKS.register(ORACLE, Yardstick(lambda task, *_: RecitedPolicy(oracle_when_asked(task))))
YARDSTICKS.register(RANDOM, Yardstick(_random, evaluated=False))


def evaluated_yardsticks() -> tuple[str, ...]:
    """The names of those that every run's evaluation plays."""
    return tuple(name for name, yardstick in YARDSTICKS.items() if yardstick.evaluated)


def yardstick_player(
    name: str,
    *,
    worlds: Callable[[Task], World],
    settings: EpisodeSettings,
    reward: Reward,
    load: Callable[[], ChatRenderer] | None = None,
) -> Player:
    """The player of a yardstick. load: gives the tokenizer, for yardsticks that have ids. Raises
    `BadInput` for an unknown name."""
    from rollout.player import Player

    make = YARDSTICKS.named(name).policy
    return Player(
        policy=lambda task, limits: make(task, limits, load or _no_tokenizer),
        worlds=worlds,
        settings=replace(settings, concurrency=min(settings.concurrency or _AT_ONCE, _AT_ONCE)),
        adapter_sha=name,
        policy_version=name,
        reward=reward,
    )
