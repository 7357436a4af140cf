"""Python's and NumPy's global generators, which environments draw from and the whole process
shares.

Two attempts at a task need the same draws while other episodes run in the same process. So a lock
is held from seeding until the draws are done. A coroutine has it up to its first wait, because a
lock that is held while it waits would stop every other episode.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

_DRAWING = threading.Lock()


def seed_generators(seed: int) -> None:
    """Seed Python's generator, and NumPy's if it is imported."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Inside the block the generators are seeded, and no other block draws from them."""
    with _DRAWING:
        seed_generators(seed)
        yield


class DrawingFrom:
    """A coroutine that holds the seeded generators from its beginning to its first wait."""

    def __init__(self, seed: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._seed = seed
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        try:
            with drawing_from(self._seed):
                waits = next(steps)
            while True:
                try:
                    sent = yield waits
                except BaseException as e:  # cancelled, or what it waits for failed
                    waits = steps.throw(e)
                else:
                    waits = steps.send(sent)
        except StopIteration as e:
            return e.value
