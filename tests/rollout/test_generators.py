"""Draws of environments: equal for equal seeds, whatever is played beside them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from rollout.generators import DrawingFrom, drawing_from, generators


def test_equal_seeds_draw_equal_numbers_of_python_and_numpy() -> None:
    import numpy as np

    drawn = []
    for _ in range(2):
        with drawing_from(2**47 + 5):
            drawn.append((random.random(), float(np.random.random())))
    assert drawn[0] == drawn[1]


def test_a_thread_that_draws_keeps_another_one_out_until_it_is_done() -> None:
    held, go_on = threading.Event(), threading.Event()
    drawn: list[float] = []

    def slow() -> None:
        with drawing_from(1):
            held.set()
            assert go_on.wait(10)
            drawn.append(random.random())

    def quick() -> None:
        with drawing_from(2):
            drawn.append(random.random())

    first = threading.Thread(target=slow)
    first.start()
    assert held.wait(10)
    second = threading.Thread(target=quick)
    second.start()
    go_on.set()
    first.join(10)
    second.join(10)
    assert drawn == [random.Random(1).random(), random.Random(2).random()]


async def test_coroutines_that_begin_together_each_draw_from_their_seed() -> None:
    met, drawn = asyncio.Event(), []

    async def draws() -> float:
        drawn.append(random.random())
        await met.wait()
        return drawn[-1]

    tasks = [asyncio.ensure_future(_drawing(seed, draws())) for seed in (1, 2, 1)]
    while len(drawn) < 3:  # all of them, though none of them has ended
        await asyncio.sleep(0)
    one, two = random.Random(1).random(), random.Random(2).random()
    assert drawn == [one, two, one]
    met.set()
    await asyncio.gather(*tasks)


async def test_a_coroutine_that_waits_holds_up_no_other() -> None:
    waiting = asyncio.Event()

    async def waits() -> None:
        waiting.set()
        await asyncio.Event().wait()

    hanging = asyncio.ensure_future(_drawing(1, waits()))
    await waiting.wait()
    with drawing_from(2):
        assert random.random() == random.Random(2).random()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_whoever_waits_for_a_thread_that_draws_does_not_hold_up_the_loop() -> None:
    held, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with drawing_from(1):
            held.set()
            assert go_on.wait(10)

    thread = threading.Thread(target=slow)
    thread.start()
    assert held.wait(10)

    async def draws() -> float:
        return random.random()

    waits = asyncio.ensure_future(_drawing(2, draws()))
    await asyncio.sleep(0)  # the loop goes on, while it waits
    assert not waits.done()
    go_on.set()
    assert await waits == random.Random(2).random()
    thread.join(10)


async def test_one_that_no_longer_waits_leaves_its_place_to_the_next() -> None:
    async def draws() -> float:
        return random.random()

    async def waits() -> None:
        async with generators():
            raise AssertionError("it had its turn")

    async with generators():
        first, second = asyncio.ensure_future(waits()), asyncio.ensure_future(_drawing(2, draws()))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    assert await second == random.Random(2).random()


async def test_what_a_coroutine_raises_and_how_it_is_cancelled_reaches_it() -> None:
    seen: list[str] = []
    waiting = asyncio.Event()

    async def failing() -> None:
        raise LookupError("at once")

    async def cleaning() -> str:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
        return "cleaned"

    with pytest.raises(LookupError, match="at once"):
        await _drawing(1, failing())
    task = asyncio.ensure_future(_drawing(1, cleaning()))
    await waiting.wait()
    task.cancel()
    assert await task == "cleaned"
    assert seen == ["cancelled"]


async def _drawing(seed: int, coroutine: Coroutine[Any, Any, Any]) -> Any:
    async with generators() as let_go:
        return await DrawingFrom(seed, coroutine, let_go)
