"""Makes a phase's player from the served adapter, the tokenizer and the worlds.

Rollout, evaluation and preflight share this module. The caller chooses the adapter and the tasks.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from fieldkit.records import Task
from reward.reward import Reward
from rollout.arm import BASE_ADAPTER
from rollout.engine.serve import MakeServer, ensure_engine, find_servers
from rollout.engine.server import Server
from rollout.engine.target import Served
from rollout.envs.base import World
from rollout.envs.registry import make_world
from rollout.flight import OnProgress, RolloutProgress
from rollout.player import Player
from rollout.policies import WrittenSampler, sampled
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.base.events import alarm, note, progress
from scripts.phases.context import Context
from scripts.phases.player_there import player_there, playing
from scripts.phases.training.kept_trainer import begin_trainer, begun_for
from scripts.run.state import SERVERS
from scripts.run.template import chat_renderer, tool_form

_TELL_SECONDS = 0.2
"""Shortest time between two progress events; episodes report every turn."""


def serve(
    ctx: Context,
    adapter: Path | None,
    version: str,
    keep: Mapping[str, Path] | None = None,
    *,
    for_training: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[Served, ...]:
    """Have the run's engine serve `adapter` (None: the base model), and journal the result; the
    servers that do, at least one.

    for_training: a step follows, whose trainer is begun meanwhile. meanwhile: as `ensure_engine`'s.
    If lifecycle is "auto", a note says which lifecycle a new server uses, and why.
    """
    before = {owned.pid for owned in find_servers(ctx.folder.path)}

    def beside() -> None:
        if for_training:
            begin_trainer(ctx)
        if meanwhile is not None:
            meanwhile()

    with ctx.watch.part("engine"), begun_for(ctx.folder.path):
        servers = ctx.waiting(
            lambda: ensure_engine(
                ctx.folder.path,
                ctx.model_dir(),
                ctx.engine(),
                adapter,
                version,
                ctx.say,
                keep=keep,
                make=_make_server(ctx),
                meanwhile=beside,
            )
        )
    for served in servers:
        is_new = served.pid is not None and served.pid not in before
        if ctx.config.engine.lifecycle == "auto" and is_new:
            note(ctx.tell, f"{served.name}: lifecycle {served.reason}")
        if served.proof is not None:
            ctx.journal.append(
                "adapter_served",
                version=version,
                adapter_sha=served.adapter_sha,
                lifecycle=served.lifecycle,
                reason=served.reason,
                verdict=served.proof.verdict.value,
                seconds=round(served.seconds, 3),
                **({"server": served.name} if len(servers) > 1 else {}),
            )
    return servers


def _make_server(ctx: Context) -> MakeServer:
    """What makes the run's own servers: on this machine, or on nodes of its cluster."""
    if not ctx.config.cluster.used:
        return Server
    from rollout.cluster.node_server import NodeServer

    return functools.partial(NodeServer, cluster=ctx.config.cluster)


def renderer(ctx: Context) -> ChatRenderer:
    """The model's tokenizer. Its import takes a second, which counts as start-up."""
    with ctx.watch.part("startup"):
        return chat_renderer(ctx.config.model, ctx.model_dir())


def serve_and_render(
    ctx: Context,
    adapter: Path | None,
    version: str,
    keep: Mapping[str, Path] | None = None,
    *,
    for_training: bool = False,
) -> tuple[tuple[Served, ...], ChatRenderer]:
    """`serve`, and the `renderer`, which is imported while the engine loads or proves."""
    with ThreadPoolExecutor(1) as beside:

        @functools.cache  # `meanwhile` may be called several times
        def chat() -> Future[ChatRenderer]:
            return beside.submit(chat_renderer, ctx.config.model, ctx.model_dir())

        # Not before: an engine looks whether the cores are free, and this takes one.
        servers = serve(ctx, adapter, version, keep, for_training=for_training, meanwhile=chat)
        with ctx.watch.part("startup"):
            return servers, chat().result()


@asynccontextmanager
async def player(
    ctx: Context,
    servers: Sequence[Served],
    chat: ChatRenderer,
    settings: EpisodeSettings,
    *,
    step: int | None = None,
) -> AsyncIterator[Player]:
    """A player of the served adapter under `settings`; use it inside an event loop. step: whose
    episodes it plays; None outside of training."""

    def on_change(text: str) -> None:
        alarm(ctx.tell, text)
        ctx.journal.append(SERVERS, text=text)

    if ctx.config.cluster.used:
        async with _player_on_nodes(ctx, servers, chat, settings, step, on_change) as on_nodes:
            yield on_nodes
        return
    paid = reward(ctx, step)
    async with playing(servers, chat, worlds(ctx), settings, paid, on_change) as here:
        yield here


@asynccontextmanager
async def _player_on_nodes(
    ctx: Context,
    servers: Sequence[Served],
    chat: ChatRenderer,
    settings: EpisodeSettings,
    step: int | None,
    on_change: Callable[[str], None],
) -> AsyncIterator[Player]:
    """The same player, whose attempts are played by workers on nodes of the run's cluster."""
    from rollout.cluster.crew import RemotePlayer, crew

    paid = reward(ctx, step)
    there = functools.partial(player_there, ctx.config, ctx.model_dir(), servers, settings, paid)
    async with crew(ctx.config.cluster, there, servers, on_change) as workers:
        yield RemotePlayer(
            policy=sampled(WrittenSampler(lambda *_: "", chat), chat),  # reads stored ones only
            worlds=worlds(ctx),
            settings=settings,
            adapter_sha=servers[0].adapter_sha or BASE_ADAPTER,
            policy_version=servers[0].version,
            reward=paid,
            crew=workers,
        )


def worlds(ctx: Context, form: str | None = None) -> Callable[[Task], World]:
    """A function that makes a fresh world for an episode of a task. form: of tool calls; None: the
    one that the model's template shows."""
    ctx.scratch.mkdir(exist_ok=True)
    site = ctx.config.site(
        ctx.scratch,
        form or tool_form(ctx.config.model, ctx.model_dir()),
        ledger=ctx.folder.ledger,
        say=functools.partial(note, ctx.tell),
    )
    return functools.partial(make_world, site=site)


def reward(ctx: Context, step: int | None = None) -> Reward:
    """This run's reward, and how its groups become advantages. step: as `player`'s."""
    paid, how = ctx.config.reward, ctx.config.advantages
    return Reward(paid if step is None else paid.at_step(step), how.scale, how.credit)


def show(ctx: Context, what: str = "episodes") -> OnProgress:
    """A callback that reports progress to the display a few times a second."""
    last = 0.0

    def on_progress(p: RolloutProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _TELL_SECONDS and p.finished < p.total:
            return
        last = now
        of_finished = {"reward": p.mean_reward, "stop_rate": p.stop_rate, "turns": p.mean_turns}
        figures = {name: mean for name, mean in of_finished.items() if mean is not None}
        figures["tokens_per_s"] = p.tokens_per_second
        progress(ctx.tell, what, p.finished, p.total, **figures)

    return on_progress
