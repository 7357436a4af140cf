"""The sessions of one OpenEnv server: as many at once as it allows, shared by all episodes.

A server has a fixed number of sessions, `create_app`'s `max_concurrent_envs`, and states it only
when it refuses one. So the bound begins at the setting and comes down to what the server has. An
episode that gets no session waits for one. This module starts no server and reads no observation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fieldkit.gate.patience import Patience
from rollout.envs.openenv.openenv_client import (
    Answer,
    AtCapacity,
    Limits,
    NoConnection,
    Session,
)

_PACE_SECONDS = (0.1, 2.0)  # waits between tries at a full server: first, longest


class Seats:
    """A semaphore whose size changes. `ceiling` is its largest size."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self._size = ceiling
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        return self._taken

    async def take(self) -> None:
        """Wait for a seat; first come, first served."""
        if self._taken < self._size and not self._waiting:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            elif turn in self._waiting:  # a seat freed since has passed it over and dropped it
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        """Free a seat. If fewer are in use than the ceiling allows, one more may be tried."""
        self._taken -= 1
        self._size = min(self.ceiling, self._size + 1)
        self._seat_the_next()

    def refused(self, most: int | None) -> bool:
        """Give back a seat that the server did not have. most: how many it has in all. Returns
        whether the ceiling came down. A server that refuses earlier shares its sessions with other
        clients: then the present number of seats becomes the bound.
        """
        self._taken -= 1
        lower = most if most is not None else max(1, self._taken)
        came_down = lower < self.ceiling
        self.ceiling = min(self.ceiling, lower)
        self._size = self.ceiling if came_down else min(self.ceiling, max(1, self._taken))
        self._seat_the_next()
        return came_down

    def _seat_the_next(self) -> None:
        while self._waiting and self._taken < self._size:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)


class Sessions:
    """Opens and closes the sessions of one server.

    name: the environment's. address: gives the server's URL, and starts a server of ours if needed.
    most: the setting `sessions`. say: called once if there are fewer. crowded: called with the URL
    if the server has had no session left for long although none of ours is open; mends that or
    raises.
    """

    def __init__(
        self,
        name: str,
        address: Callable[[], Awaitable[str]],
        most: int,
        limits: Limits,
        say: Callable[[str], None],
        crowded: Callable[[str], Awaitable[None]],
    ) -> None:
        self._name = name
        self._address = address
        self._asked = most
        self._limits = limits
        self._say = say
        self._crowded = crowded
        self._seats = Seats(most)
        self._established = 0
        self._url = ""

    async def begin(self, options: Mapping[str, Any]) -> tuple[Session, Answer]:
        """A session whose environment has been reset with `options`, and what it showed.

        Waits while our own episodes hold the server's sessions. Raises `Unavailable` if no session
        can be opened for `connect_seconds`, or other clients hold all of them.
        """
        low, high = _PACE_SECONDS
        patience, pace = Patience(self._limits.connect_seconds, high), low
        while True:
            await self._seats.take()
            try:
                return await self._try(options)
            except NoConnection:
                self._seats.give_back()
                if patience.over():
                    raise
            except AtCapacity as full:
                if self._seats.refused(full.most):
                    self._tell(full.most)
                if self._established:
                    continue  # a seat is free when one of ours ends
                if patience.over():
                    await self._crowded(self._url)
            except BaseException:
                self._seats.give_back()
                raise
            await asyncio.sleep(pace)
            pace = min(high, 2 * pace)

    async def _try(self, options: Mapping[str, Any]) -> tuple[Session, Answer]:
        self._url = await self._address()
        session = await Session.opened(self._url, self._limits)
        try:
            answer = await session.reset(options)
        except BaseException:
            await session.close()
            raise
        self._established += 1
        return session, answer

    async def end(self, session: Session) -> None:
        """Close a session that `begin` gave."""
        try:
            await session.close()
        finally:
            self._established -= 1
            self._seats.give_back()

    def _tell(self, most: int | None) -> None:
        n = self._seats.ceiling
        why = (
            f"has {n} session{'s' if n > 1 else ''}" if most else f"takes no more than {n} at once"
        )
        self._say(
            f"envs.{self._name}: its server {why}, not {self._asked}: further episodes wait for a"
            f" session; start it with max_concurrent_envs={self._asked}, or set sessions = {n}"
        )
