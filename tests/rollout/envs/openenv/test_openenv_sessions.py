"""Many sessions of one server: as many at once as it has, and none that is left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import Unavailable
from rollout.envs.openenv.openenv_client import Limits, NoConnection, Session
from rollout.envs.openenv.openenv_server import LocalServer
from rollout.envs.openenv.openenv_sessions import Seats, Sessions
from tests.rollout.envs.openenv.openenv_local import QUICK, count, launch, local, sessions


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[LocalServer]:
    """A server of two sessions."""
    with local(launch("two"), tmp_path) as server:
        await server.address()
        yield server


async def play(of: Sessions, seed: int) -> str:
    session, _ = await of.begin({"seed": seed})
    try:
        for number in range(1, 11):
            answer = await session.step({"number": number})
            if answer.done:
                return str(answer.observation["text"])
    finally:
        await of.end(session)
    raise AssertionError("the number is from 1 to 10")


async def test_64_episodes_at_once_each_have_a_session_of_their_own(tmp_path: Path) -> None:
    said: list[str] = []
    with local(launch(), tmp_path) as server:
        of = sessions(server, 64, said.append)
        open_ones = [await of.begin({"seed": i}) for i in range(64)]
        assert (await count(server))["open"] == 64
        await asyncio.gather(*(of.end(session) for session, _ in open_ones))
        assert await asyncio.gather(*(play(of, i) for i in range(64))) == ["Right."] * 64
        assert await count(server) == {"open": 0, "closed": 128}
    assert said == []


async def test_256_at_once_and_one_that_hangs_stalls_none(tmp_path: Path) -> None:
    with local(launch("many"), tmp_path) as server:
        of = sessions(server, 256)
        hanging = asyncio.create_task(play_on(of, "step:hang"))
        assert await asyncio.gather(*(play(of, i) for i in range(255))) == ["Right."] * 255
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])


async def test_a_server_with_fewer_sessions_plays_fewer_at_once_and_this_is_said_once(
    two: LocalServer,
) -> None:
    said: list[str] = []
    of = sessions(two, 64, said.append)
    assert await asyncio.gather(*(play(of, i) for i in range(20))) == ["Right."] * 20
    assert await asyncio.gather(*(play(of, i) for i in range(20))) == ["Right."] * 20
    assert said == [
        "envs.guess: its server has 2 sessions, not 64: further episodes wait for a session; start"
        " it with max_concurrent_envs=64, or set sessions = 2"
    ]
    assert await count(two) == {"open": 0, "closed": 40}


async def test_the_65th_session_of_64_waits_for_one_of_them(tmp_path: Path) -> None:
    with local(launch(), tmp_path) as server:
        of = sessions(server, 65)
        open_ones = [await of.begin({}) for _ in range(64)]
        late = asyncio.create_task(of.begin({"seed": 3}))
        done, _ = await asyncio.wait([late], timeout=0.3)
        assert not done
        await of.end(open_ones[0][0])
        session, answer = await late
        assert answer.observation["text"] == "Guess my number."
        for one, _ in [*open_ones[1:], (session, answer)]:
            await of.end(one)


async def test_sessions_that_somebody_else_holds_are_waited_for_and_then_it_is_said(
    two: LocalServer,
) -> None:
    async def crowded(url: str) -> None:
        raise Unavailable(f"{url} is full")

    limits = replace(QUICK, connect_seconds=0.5)
    strangers = [await Session.opened(await two.address(), QUICK) for _ in range(2)]
    for stranger in strangers:
        await stranger.reset({})
    of = Sessions("guess", two.address, 2, limits, pytest.fail, crowded)
    with pytest.raises(Unavailable, match="is full"):
        await of.begin({})
    await strangers[0].close()
    assert await play(of, 1) == "Right."
    await strangers[1].close()


async def test_with_a_stranger_on_it_the_episodes_take_turns_in_what_is_left(
    two: LocalServer,
) -> None:
    stranger = await Session.opened(await two.address(), QUICK)
    await stranger.reset({})
    of = sessions(two, 2)
    assert await asyncio.gather(*(play(of, i) for i in range(8))) == ["Right."] * 8
    await stranger.close()


async def test_a_server_of_ours_whose_sessions_hang_is_started_again(two: LocalServer) -> None:
    """A hung step keeps its session on the server, whatever the client does."""
    limits = replace(QUICK, call_seconds=1.0, connect_seconds=0.5)
    of = sessions(two, 2, limits=limits)
    before = two.pid
    for _ in range(2):
        session, _ = await of.begin({"fault": "step:hang"})
        with pytest.raises(Unavailable, match="no answer within"):
            await session.step({"number": 1})
        await of.end(session)
    assert await play(of, 1) == "Right."
    assert two.pid != before


async def test_an_episode_that_is_cancelled_leaves_no_seat_taken(two: LocalServer) -> None:
    of = sessions(two, 2)
    for fault in ("", "step:hang", "reset:hang"):
        episode = asyncio.create_task(play_on(of, fault))
        await asyncio.wait([episode], timeout=0.3)
        episode.cancel()
        await asyncio.gather(episode, return_exceptions=True)
        assert episode.cancelled()
        assert of._seats.taken == 0
        # Waiting episodes take the cancelled one's seat.
        if fault == "":
            assert (await count(two))["open"] == 0
            assert await asyncio.gather(*(play(of, i) for i in range(4))) == ["Right."] * 4


async def play_on(of: Sessions, fault: str) -> None:
    session, _ = await of.begin({"fault": fault, "seed": 3})
    try:
        while True:
            await session.step({"number": 1})
    finally:
        await of.end(session)


async def test_a_server_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    with local(launch(), tmp_path) as server:
        url = await server.address()
        port = int(url.rpartition(":")[2])

        async def address() -> str:
            return url

        of = Sessions("guess", address, 64, QUICK, pytest.fail, server.restart)
        assert await play(of, 1) == "Right."
        await asyncio.to_thread(server.stop)
        waiting = asyncio.create_task(play(of, 2))
        await asyncio.wait([waiting], timeout=0.3)
        with local(launch(port=port), tmp_path / "again") as again:
            await again.address()
            assert await waiting == "Right."


async def test_a_server_that_stays_away_is_no_connection() -> None:
    async def address() -> str:
        return "http://127.0.0.1:9"

    async def crowded(url: str) -> None:
        raise AssertionError

    limits = Limits(connect_seconds=0.3)
    of = Sessions("guess", address, 64, limits, pytest.fail, crowded)
    with pytest.raises(NoConnection):
        await of.begin({})


async def test_seats_are_taken_in_order_and_one_that_leaves_the_queue_takes_none() -> None:
    seats = Seats(1)
    await seats.take()
    first, second = (asyncio.create_task(seats.take()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    seats.give_back()
    await asyncio.wait_for(second, 1)
    assert seats.taken == 1


async def test_one_who_is_cancelled_while_a_seat_is_freed_ends_as_cancelled() -> None:
    seats = Seats(1)
    await seats.take()
    first, second = (asyncio.create_task(seats.take()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    seats.give_back()  # before the first one runs again
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 1)
    assert seats.taken == 1


async def test_a_seat_that_was_given_to_one_who_is_cancelled_goes_to_the_next() -> None:
    seats = Seats(1)
    await seats.take()
    first, second = (asyncio.create_task(seats.take()) for _ in range(2))
    await asyncio.sleep(0)
    seats.give_back()  # to the first, which is cancelled before it runs again
    first.cancel()
    await asyncio.wait([first])
    await asyncio.wait_for(second, 1)
    assert seats.taken == 1
