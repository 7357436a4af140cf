"""The player of a phase, and the same made again for a rollout worker on a node of a cluster.

The node has the same checkout. Its processes mean nothing in the run's ledger, which has the pids
of another machine, so what a world starts there is in a ledger of its own and ends with the worker.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fieldkit.records import Task
from reward.reward import Reward
from rollout.arm import BASE_ADAPTER
from rollout.engine.router import samplers
from rollout.engine.target import Served
from rollout.envs.base import World
from rollout.envs.configured import register_environments
from rollout.envs.registry import make_world
from rollout.player import Player
from rollout.policies import sampled_for
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.run.config import RunConfig
from scripts.run.template import chat_renderer, tool_form


def in_turn(servers: Sequence[Served], number: int) -> list[Served]:
    """The servers as worker `number` sees them: no process of its machine, and each worker begins
    with another one. A worker does not see what the others ask, and asks the first where it knows
    of no difference."""
    first = number % len(servers)
    return [replace(served, pid=None) for served in (*servers[first:], *servers[:first])]


@asynccontextmanager
async def player_there(
    config: RunConfig,
    model_dir: Path,
    servers: Sequence[Served],
    settings: EpisodeSettings,
    paid: Reward,
    on_line: Callable[[str], None],
    number: int,
) -> AsyncIterator[Player]:
    """A player of the served adapter on this node; use it inside an event loop. on_line hears what
    a person should read. number: the worker's, from 0."""
    register_environments(config.envs, ROOT)
    chat = chat_renderer(config.model, model_dir)
    reached = in_turn(servers, number)
    with tempfile.TemporaryDirectory(prefix="grpo-") as scratch:
        form = tool_form(config.model, model_dir)
        worlds = partial(make_world, site=config.site(Path(scratch), form, say=on_line))
        async with playing(reached, chat, worlds, settings, paid, on_line) as player:
            yield player


@asynccontextmanager
async def playing(
    servers: Sequence[Served],
    chat: ChatRenderer,
    worlds: Callable[[Task], World],
    settings: EpisodeSettings,
    paid: Reward,
    on_line: Callable[[str], None],
) -> AsyncIterator[Player]:
    """A player of what the servers serve, on whatever machine; use it inside an event loop. on_line
    hears which of them are lost and come back."""
    async with samplers(servers, (chat.eot_id,), on_line) as sampler_of:
        yield Player(
            policy=sampled_for(sampler_of, chat),
            worlds=worlds,
            settings=settings,
            adapter_sha=servers[0].adapter_sha or BASE_ADAPTER,
            policy_version=servers[0].version,
            reward=paid,
        )
