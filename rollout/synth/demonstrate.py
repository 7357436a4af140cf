"""Oracle demonstrations, from which the warm start learns to work and not to stop.

A demonstration is played in the same world as every rollout and kept as a trajectory with ids: the
work, command by command, then commands that check it. Most of them keep checking until they end,
which is the habit that GRPO has to break. A few end with TASK_COMPLETE, so that a stop has some
probability and can be reinforced. Nothing is sampled here: a written id has logprob 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from fieldkit.errors import BadInput
from fieldkit.records import Sampling, Task, Trajectory
from reward.reward import Reward
from reward.shaping import RewardSettings
from rollout.envs.base import World
from rollout.envs.shell_protocol import STOP, block
from rollout.player import Player
from rollout.policies import reciting
from rollout.settings import EpisodeSettings
from rollout.synth.splits import Plan
from rollout.transcript import ChatRenderer

WRITTEN = Sampling(temperature=0.0, max_tokens=0, top_p=1.0, top_k=0, min_p=0.0)
"""The sampling of a written text."""

_NO_LIMIT = 10**6
"""No limit in tokens or seconds: a demonstration ends with its script."""


@dataclass(frozen=True)
class DemoSettings:
    """How demonstrations end and what they look at."""

    stop_share: float = 0.06
    """Share of demonstrations whose last turn is TASK_COMPLETE; the others keep checking."""
    max_checks: int = 4
    """Turns after the work: 1 to this many, uniformly; a stop replaces the last one."""
    look_share: float = 0.3
    """Share of demonstrations that look at a file before the work."""


def script(plan: Plan, settings: DemoSettings, rng: random.Random) -> list[str]:
    """The replies of one demonstration, in order; the last is a check or `STOP`."""
    commands: list[str] = []
    if rng.random() < settings.look_share:
        commands.append(rng.choice(plan.pieces[0].looks))
    for piece in plan.pieces:
        commands.extend(piece.commands)
    checks = [c for piece in plan.pieces for c in piece.checks] + ["ls"]
    commands.extend(rng.choice(checks) for _ in range(rng.randint(1, settings.max_checks)))
    replies = [block(c) for c in commands]
    if rng.random() < settings.stop_share:
        replies[-1] = STOP
    return replies


async def demonstrate(
    plan: Plan,
    number: int,
    worlds: Callable[[Task], World],
    renderer: ChatRenderer,
    settings: DemoSettings,
    rng: random.Random,
) -> Trajectory:
    """Play one demonstration. Raises `BadInput` if the oracle does not pass its own task."""
    replies = script(plan, settings, rng)
    player = Player(
        policy=lambda task, limits: reciting(replies, renderer, limits),
        worlds=worlds,
        settings=EpisodeSettings(
            max_turns=len(replies),
            max_new_tokens=_NO_LIMIT,
            max_model_len=2 * _NO_LIMIT,
            episode_seconds=_NO_LIMIT,
        ),
        adapter_sha="oracle",
        policy_version="oracle",
        reward=Reward(RewardSettings(max_turns=len(replies))),
        clock=lambda: 0.0,
    )
    played = await player.play(plan.task, number, seeds=lambda turn: 0)
    grade = played.grade
    if not grade.passed:
        why = "; ".join(f"{r.kind} {r.path}: {r.detail}" for r in grade.results if not r.passed)
        raise BadInput(f"{plan.task.task_id}: the oracle does not pass its own task ({why})")
    # A demonstration has no sampled reply and no reward, so its record leaves those fields out.
    turns = tuple(replace(turn, reward=None) for turn in played.turns)
    return replace(played, sampling=WRITTEN, turns=turns, reward=1.0, metrics={})
