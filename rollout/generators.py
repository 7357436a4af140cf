"""Python's and NumPy's global generators, which environments draw from and the whole process
shares.

Two attempts at a task need the same draws while other episodes run in the same process. So one
piece of code at a time has the generators, from seeding until its draws are done; the others wait
in the order in which they asked. Whoever waits on an event loop does not hold it up, and its time
limit begins after the wait. A coroutine has them up to its first own wait only, because what it
waits for would stop every other episode.
"""

from __future__ import annotations

import asyncio
import functools
import random
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

_guard = threading.Lock()
_asked: deque[Future[None]] = deque()
"""Those who asked for the generators; the first one has them. A lock of `threading` would block the
loop, and one of `asyncio` belongs to a single loop and keeps no thread out."""


def _ask() -> Future[None]:
    turn: Future[None] = Future()
    with _guard:
        _asked.append(turn)
        if _asked[0] is turn:
            turn.set_result(None)
    return turn


def _give_back(turn: Future[None]) -> None:
    """Of one that has them, waits for them, or gave them back already."""
    with _guard:
        if turn not in _asked:
            return
        had = _asked[0] is turn
        _asked.remove(turn)
        if had and _asked:
            _asked[0].set_result(None)


def seed_generators(seed: int) -> None:
    """Seed Python's generator, and NumPy's if it is imported."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Inside the block the generators are seeded, and no other block draws from them. It blocks its
    thread until they are free, so a coroutine uses `generators`."""
    turn = _ask()
    try:
        turn.result()
        seed_generators(seed)
        yield
    finally:
        _give_back(turn)


@asynccontextmanager
async def generators() -> AsyncIterator[Callable[[], None]]:
    """Inside the block nobody else has the generators; gives a function that lets them go before
    its end."""
    turn = _ask()
    try:
        await asyncio.shield(asyncio.wrap_future(turn))
        yield functools.partial(_give_back, turn)
    finally:
        _give_back(turn)


class DrawingFrom:
    """A coroutine that has the seeded generators from its beginning to its first wait.

    let_go: called then, from `generators`.
    """

    def __init__(
        self, seed: int, coroutine: Coroutine[Any, Any, Any], let_go: Callable[[], None]
    ) -> None:
        self._seed = seed
        self._coroutine = coroutine
        self._let_go = let_go

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        try:
            seed_generators(self._seed)
            try:
                waits = next(steps)
            finally:
                self._let_go()
            while True:
                try:
                    sent = yield waits
                except BaseException as e:  # cancelled, or what it waits for failed
                    waits = steps.throw(e)
                else:
                    waits = steps.send(sent)
        except StopIteration as e:
            return e.value
