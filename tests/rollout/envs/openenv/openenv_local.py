"""Servers for the tests: the double under our own Python, or any app under another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.envs.base import Site
from rollout.envs.openenv.openenv_client import Limits
from rollout.envs.openenv.openenv_server import Launch, LocalServer
from rollout.envs.openenv.openenv_sessions import Sessions
from rollout.envs.openenv.openenv_toolbox import OpenEnv, OpenEnvToolbox
from rollout.envs.registry import make_world
from rollout.player import Player
from rollout.policies import RecitedPolicy
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from scripts.base.checkout import ROOT

DOUBLE = "tests/rollout/envs/openenv/openenv_double.py"
THIS_PYTHON = Path(sys.executable)
QUICK = Limits(call_seconds=10.0, connect_seconds=5.0, max_bytes=2**20)


def launch(app: str = "app", **other: Any) -> Launch:
    """The double's app of that name, or the app of another file."""
    app = app if ":" in app or "." in app else f"{DOUBLE}:{app}"
    return replace(Launch("guess", app, THIS_PYTHON, ROOT), **other)


@contextmanager
def local(
    how: Launch, folder: Path, say: Callable[[str], None] = lambda line: None
) -> Iterator[LocalServer]:
    """A server that is started when it is asked for its address, and ended."""
    server = LocalServer(how, folder / "ledger.json", folder / "log", say)
    try:
        yield server
    finally:
        server.stop()


def sessions(
    server: LocalServer,
    most: int = 64,
    say: Callable[[str], None] = lambda line: None,
    limits: Limits = QUICK,
) -> Sessions:
    return Sessions("guess", server.address, most, limits, say, server.restart)


async def count(server: LocalServer) -> dict[str, int]:
    """How many sessions of the double are open, and how many were closed."""
    async with httpx.AsyncClient() as http:
        answer: dict[str, int] = (await http.get(f"{await server.address()}/count")).json()
    return answer


async def begin(env: OpenEnv, row: Mapping[str, Any], seed: int = 0) -> OpenEnvToolbox:
    """An episode of that row."""
    episode, _ = await opened(env, row, seed)
    return episode


async def opened(env: OpenEnv, row: Mapping[str, Any], seed: int = 0) -> tuple[OpenEnvToolbox, str]:
    """An episode of that row, and what it shows first."""
    episode = OpenEnvToolbox(env)
    return episode, await episode.reset(row, seed) or ""


def play(
    task: Task,
    replies: Sequence[str],
    folder: Path,
    said: list[str] | None = None,
    max_turns: int = 80,
) -> Trajectory:
    """One episode of a policy that recites, by the player of every run. said: gets what a person
    would be told."""
    tell = (lambda line: None) if said is None else said.append
    site = Site(SandboxSettings(), folder, ledger=folder / "ledger.json", say=tell)
    player = Player(
        policy=lambda *_: RecitedPolicy(replies),
        worlds=lambda t: make_world(t, site),
        settings=EpisodeSettings(max_turns=max_turns),
        adapter_sha="recited",
        policy_version="recited",
        reward=Reward(),
        clock=lambda: 0.0,
    )
    return asyncio.run(player.play(task, 0, lambda turn: turn + 1))


@contextmanager
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the servers that were started meanwhile; a run's end with its process."""
    started: list[LocalServer] = []
    make = LocalServer.__init__

    def noted(self: LocalServer, *words: Any) -> None:
        make(self, *words)
        started.append(self)

    monkeypatch.setattr(LocalServer, "__init__", noted)
    try:
        yield
    finally:
        for server in started:
            server.stop()
