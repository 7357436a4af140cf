"""Plays attempts on a node: a player of its own, in a process of Ray's.

It writes no file of the run. What it has played goes back as the line that the run stores; the
phase that asked keeps it. It plays by the same code as a run on one box.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from fieldkit.codec import encode_trajectory
from fieldkit.errors import FieldkitError
from fieldkit.records import Task
from rollout.flight import Attempt, allow_episodes, fly
from rollout.player import Player, TurnSeeds

PlayerThere = Callable[[Callable[[str], None], int], AbstractAsyncContextManager[Player]]
"""Makes the player on a node. Its arguments: what hears lines that a person should read, and the
worker's number, from 0."""


@dataclass(frozen=True)
class Said:
    """A worker's answer.

    code: 0, or the exit code of the error that ended the work. text: the trajectory's line, or the
    error. lines: what a person should read, since the last answer.
    """

    code: int
    text: str
    lines: tuple[str, ...] = ()


class RolloutWorker:
    """make: its player. number: as in `PlayerThere`.

    Ray's event loop need not be asyncio's, for which the sandbox is written, so attempts are played
    in a loop of its own, whose thread lives as long as this process.
    """

    def __init__(self, make: PlayerThere, number: int) -> None:
        self._in_flight = 0
        self._lines: list[str] = []
        self._playing = make(self._lines.append, number)
        self._player: Player | None = None
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def place(self) -> str:
        """The node's name; the answer shows that Ray has placed it."""
        return os.uname().nodename

    async def begin(self) -> Said:
        """Load what it needs to play."""

        async def load() -> str:
            self._player = await self._playing.__aenter__()
            return ""

        return await self._answer(load())

    async def play(self, task: Task, k: int, seeds: TurnSeeds) -> Said:
        """Play an attempt, again where this process stood still, as a phase does."""
        assert self._player is not None, "begin comes first"
        attempt, player = Attempt(task, k), self._player

        async def played() -> str:
            self._in_flight += 1
            try:
                allow_episodes(self._in_flight)
                (trajectory,) = await fly([attempt], player, lambda _: seeds)
            finally:
                self._in_flight -= 1
            return encode_trajectory(trajectory)

        return await self._answer(played())

    async def end(self) -> None:
        """Close what the player holds."""
        if self._player is not None:
            await self._there(self._playing.__aexit__(None, None, None))

    async def _answer(self, work: Coroutine[Any, Any, str]) -> Said:
        # An expected error goes back as its code, because not every class survives pickling.
        try:
            code, text = 0, await self._there(work)
        except FieldkitError as e:
            code, text = e.exit_code, str(e)
        lines = tuple(self._lines)
        self._lines.clear()
        return Said(code, text, lines)

    async def _there(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
