"""Draws of environments: equal for equal seeds, whatever is played beside them."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from rollout.generators import DrawingFrom, drawing_from


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
    met = asyncio.Event()

    async def draws() -> float:
        number = random.random()
        await met.wait()
        return number

    tasks = [asyncio.ensure_future(_awaited(DrawingFrom(seed, draws()))) for seed in (1, 2, 1)]
    await asyncio.sleep(0)  # each has begun and waits
    met.set()
    one, two = random.Random(1).random(), random.Random(2).random()
    assert await asyncio.gather(*tasks) == [one, two, one]


async def test_a_coroutine_that_waits_holds_up_no_other() -> None:
    never = asyncio.Event()

    async def waits() -> None:
        await never.wait()

    hanging = asyncio.ensure_future(_awaited(DrawingFrom(1, waits())))
    await asyncio.sleep(0)
    with drawing_from(2):
        assert random.random() == random.Random(2).random()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_what_a_coroutine_raises_and_how_it_is_cancelled_reaches_it() -> None:
    seen: list[str] = []

    async def failing() -> None:
        raise LookupError("at once")

    async def cleaning() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
        return "cleaned"

    with pytest.raises(LookupError, match="at once"):
        await DrawingFrom(1, failing())
    task = asyncio.ensure_future(_awaited(DrawingFrom(1, cleaning())))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned"
    assert seen == ["cancelled"]


async def _awaited(awaitable: DrawingFrom) -> object:
    return await awaitable
