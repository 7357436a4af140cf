"""Rollouts against one engine: episodes in flight, and the engine alone.

One server plays the same 32 episodes with 1, 4, 16 and all of them in flight. One at a time is how
the document's loop plays them. "engine" sends the turns of a stored rollout again as plain
requests, ids in and as many ids out as were sampled then, without worlds and without waiting for
them: what this engine does at best with this work. The server's prefix cache is emptied before
each, as a new adapter would. This machine's matrix products are measured in between, because its
speed may change from one minute to the next.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import httpx
import psutil

from fieldkit.codec import read_bundle
from fieldkit.records import RolloutGroup, Turn
from rollout.bundle import roll_out
from rollout.engine.client import EngineClient
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.serve import ensure_engine, stop_engine
from rollout.engine.target import Served
from rollout.transcript import ChatRenderer
from tests.bench import trainers
from tests.bench.measurements import Measurements, Values, in_turn, tell
from tests.bench.work import Work

PART = "rollout"
ALL, ENGINE = "all in flight", "engine alone"
IN_FLIGHT = {"1 in flight": 1, "4 in flight": 4, "16 in flight": 16, ALL: 0}
LIMIT = trainers.LIMIT
CONTESTANTS = (*IN_FLIGHT, ENGINE, LIMIT)

_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")

USED = ("engine", "player", "worlds")
"""Whose processor seconds are counted: the server's, this process's, and those of the sandboxes."""
PEAKS = ("engine_peak_bytes", "player_peak_bytes")


@contextmanager
def served(work: Work, settings: EngineSettings) -> Iterator[Served]:
    """A server with the work's adapter, ended afterwards; its prefix cache can be emptied."""
    with tempfile.TemporaryDirectory() as run, patch.dict(os.environ, VLLM_SERVER_DEV_MODE="1"):
        folder = Path(run)
        try:
            (server,) = ensure_engine(folder, work.model, settings, work.adapter.path, "v0", tell)
            yield server
        finally:
            stop_engine(folder)


def measure(work: Work, taken: Measurements, rounds: int, bundle: Path) -> None:
    """Measure every contestant; `bundle` is the rollout that "engine" sends again."""
    if not taken.missing(PART, CONTESTANTS, rounds) and bundle.is_file():
        return
    chat = ChatRenderer(work.model)
    with served(work, work.config.engine) as server:
        if not bundle.is_file():
            play(work, server, chat, 0, bundle)  # warms the server too
        groups = read_bundle(bundle)
        for name, round_ in in_turn(CONTESTANTS, rounds):

            def do(name: str = name) -> Values:
                if name == LIMIT:
                    return trainers.passes(work, bundle, trainers.KINDS[LIMIT])
                empty_cache(server)
                engine, player = _tree(psutil.Process(server.pid)), psutil.Process()
                forget_peaks([*engine, player])
                before = _used(engine, player)
                if name == ENGINE:
                    found = asyncio.run(_send_again(server, groups))
                else:
                    found = play(work, server, chat, IN_FLIGHT[name])
                used = zip(USED, before, _used(engine, player), strict=True)
                peaks = dict(zip(PEAKS, (peak(engine), peak([player])), strict=True))
                return {**found, **{who: after - earlier for who, earlier, after in used}, **peaks}

            taken.take(PART, name, round_, do)


def make_bundle(work: Work, bundle: Path) -> None:
    """Play one rollout, for what is measured on it."""
    with served(work, work.config.engine) as server:
        play(work, server, ChatRenderer(work.model), 0, bundle)


def play(
    work: Work, server: Served, chat: ChatRenderer, concurrency: int, bundle: Path | None = None
) -> Values:
    """Play the step's episodes; seconds, turns, and the ids that were sampled and read."""
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        out = bundle or scratch / "bundle.jsonl"
        out.parent.mkdir(parents=True, exist_ok=True)

        async def episodes() -> tuple[RolloutGroup, ...]:
            settings = work.config.rollout
            async with _client(server, chat) as client:
                return await roll_out(
                    1,
                    work.tasks,
                    player=work.player(client, chat, concurrency, scratch),
                    run_seed=settings.run_seed,
                    group_size=settings.group_size,
                    partial=scratch / "partial.jsonl",
                    bundle=out,
                )

        began = time.monotonic()
        groups = asyncio.run(episodes())
        seconds = time.monotonic() - began
    trajectories = [t for g in groups for t in g.trajectories]
    return {
        **amount(groups),
        "seconds": seconds,
        "commands": sum(t.metrics["commands"] for t in trajectories),
        "command_seconds": sum(t.metrics["command_seconds"] for t in trajectories),
    }


def _tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and all that it has started."""
    return [root, *root.children(recursive=True)]


def _used(engine: Sequence[psutil.Process], player: psutil.Process) -> tuple[float, float, float]:
    """Processor seconds so far, in the order of `USED`."""
    times, own = [p.cpu_times() for p in engine], player.cpu_times()
    return (
        sum(t.user + t.system for t in times),
        own.user + own.system,
        own.children_user + own.children_system,
    )


def forget_peaks(processes: Iterable[psutil.Process]) -> None:
    """Have `peak` count from now on (proc_pid_clear_refs(5))."""
    for process in processes:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="utf-8")


def peak(processes: Iterable[psutil.Process]) -> int:
    """Bytes: the most that each has held in memory, added up. Pages that several share count for
    each of them."""
    files = [Path(f"/proc/{process.pid}/status") for process in processes]
    found = [_PEAK.findall(file.read_text(encoding="utf-8")) for file in files]
    return sum(int(kib) * 1024 for (kib,) in found)


def amount(groups: tuple[RolloutGroup, ...]) -> Values:
    """Episodes, turns, ids sampled (also by the longest episode), and ids that an engine with a
    prefix cache has to read for them."""
    episodes = [t.turns for g in groups for t in g.trajectories]
    return {
        "episodes": len(episodes),
        "group_size": len(groups[0].trajectories),
        "longest": max(sum(len(turn.completion_ids) for turn in turns) for turns in episodes),
        "turns": sum(map(len, episodes)),
        "sampled": sum(len(turn.completion_ids) for turns in episodes for turn in turns),
        "read": sum(_new(turns) for turns in episodes),
    }


def _new(turns: tuple[Turn, ...]) -> int:
    """Prompt ids that do not continue the turn before."""
    before, new = 0, 0
    for turn in turns:
        new += len(turn.prompt_ids) - before
        before = len(turn.prompt_ids) + len(turn.completion_ids)
    return new


async def _send_again(server: Served, groups: tuple[RolloutGroup, ...]) -> Values:
    """Every turn as one request, the episodes side by side; no turn waits for a world."""
    episodes = [t.turns for g in groups for t in g.trajectories]
    async with httpx.AsyncClient(
        base_url=server.base_url,
        headers={"Authorization": f"Bearer {server.api_key}"},
        timeout=None,
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    ) as http:

        async def request(turn: Turn) -> None:
            length = len(turn.completion_ids)
            body = {
                "model": server.model_name,
                "prompt": list(turn.prompt_ids),
                "max_tokens": length,
                "min_tokens": length,
                "ignore_eos": True,
                "temperature": 1.0,
                "seed": turn.seed,
                "logprobs": 0,
                "return_token_ids": True,
            }
            (await http.post("/v1/completions", json=body)).raise_for_status()

        async def one_after_the_other(turns: tuple[Turn, ...]) -> None:
            for turn in turns:
                await request(turn)

        began = time.monotonic()
        await asyncio.gather(*map(one_after_the_other, episodes))
        return {**amount(groups), "seconds": time.monotonic() - began}


def empty_cache(server: Served) -> None:
    """Forget every prefix, as after an adapter that is new."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    address = f"{server.base_url}/reset_prefix_cache"
    httpx.post(address, headers=headers, trust_env=False, timeout=60).raise_for_status()


def _client(server: Served, chat: ChatRenderer) -> EngineClient:
    return EngineClient(
        server.base_url, server.api_key, server.model_name, stop_token_ids=(chat.eot_id,)
    )


def stock(settings: EngineSettings) -> EngineSettings:
    """vLLM's own code in its own processes, restarted for each adapter; its flags, preloads and
    threads are those of every contestant."""
    return replace(settings, cpu_patches=False, one_process=False, lifecycle="restart")
