"""One session: what is asked, what is understood, and what each broken answer is called."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.utils import accept_key

from fieldkit.errors import BadInput, Unavailable
from rollout.envs.openenv.openenv_client import (
    ActionRefused,
    AtCapacity,
    NoConnection,
    Session,
    addresses,
    fetch_schema,
)
from rollout.envs.openenv.openenv_server import LocalServer
from tests.rollout.envs.openenv.openenv_double import ACTION, TOOLS
from tests.rollout.envs.openenv.openenv_local import QUICK, count, launch, local


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with local(launch(), tmp_path_factory.mktemp("double")) as one:
        yield one


async def opened(server: LocalServer) -> Session:
    return await Session.opened(await server.address(), QUICK)


async def test_a_game_is_played_to_its_end(server: LocalServer) -> None:
    session = await opened(server)
    first = await session.reset({"seed": 3})
    assert first.observation["text"] == "Guess my number."
    assert (first.reward, first.done) == (None, False)
    answers = [await session.step({"number": n}) for n in range(1, 5)]
    assert [a.observation["text"] for a in answers] == ["Higher.", "Higher.", "Higher.", "Right."]
    assert [a.reward for a in answers] == [-0.1, -0.1, -0.1, 1.0]
    assert [a.done for a in answers] == [False, False, False, True]
    await session.close()


async def test_the_schema_is_the_actions(server: LocalServer) -> None:
    assert await fetch_schema(await server.address(), QUICK) == ACTION


async def test_the_tools_of_an_mcp_environment_are_asked_for(server: LocalServer) -> None:
    session = await opened(server)
    await session.reset({})
    assert await session.mcp_tools() == TOOLS
    await session.close()


async def test_a_closed_session_has_made_room_for_another(server: LocalServer) -> None:
    before = await count(server)
    session = await opened(server)
    await session.reset({})
    assert (await count(server))["open"] == before["open"] + 1
    await session.close()
    await session.close()
    assert await count(server) == {"open": before["open"], "closed": before["closed"] + 1}


async def test_an_action_that_does_not_fit_is_refused_by_field_and_the_session_goes_on(
    server: LocalServer,
) -> None:
    session = await opened(server)
    await session.reset({"seed": 3})
    with pytest.raises(ActionRefused, match="number: Field required; size: Extra inputs are not"):
        await session.step({"size": 3})
    assert (await session.step({"number": 4})).done
    await session.close()


async def test_an_environment_that_raises_on_an_action_says_why_and_the_session_goes_on(
    server: LocalServer,
) -> None:
    session = await opened(server)
    await session.reset({"fault": "step:raise"})
    with pytest.raises(ActionRefused, match="the ball is lost"):
        await session.step({"number": 4})
    assert not (await session.reset({})).done
    await session.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reset:raise", "reset: the ball is lost"),
        ("reset:factory", "FACTORY_ERROR: Failed to create environment from factory 'Guess'"),
        ("reset:text", "not an answer of OpenEnv's protocol: '<html>'"),
        ("reset:list", "not an answer of OpenEnv's protocol"),
        ("reset:no_done", "not an answer of OpenEnv's protocol"),
        ("reset:reward_text", "not an answer of OpenEnv's protocol"),
        ("reset:hang_up", "the server hung up"),
        ("reset:huge", "an answer of more than 1 MiB"),
    ],
)
async def test_a_broken_environment_is_unavailable_and_its_session_is_not_used_again(
    server: LocalServer, fault: str, reason: str
) -> None:
    session = await opened(server)
    with pytest.raises(Unavailable, match=reason):
        await session.reset({"fault": fault})
    if fault != "reset:raise":  # what an environment said is understood; the rest is not
        with pytest.raises(Unavailable, match="closed"):
            await session.step({"number": 1})
    await session.close()


@pytest.mark.parametrize(("fault", "gave"), [("nan", "nan"), ("huge_reward", "inf")])
async def test_a_reward_that_is_no_number_is_bad_input(
    server: LocalServer, fault: str, gave: str
) -> None:
    session = await opened(server)
    with pytest.raises(BadInput, match=f"the environment's reward: gave {gave}, which is not a"):
        await session.reset({"fault": f"reset:{fault}"})
    await session.close()


async def test_a_tool_without_a_name_is_no_answer_of_the_protocol() -> None:
    class Peer:
        async def send(self, request: str) -> None: ...

        async def recv(self) -> str:
            return json.dumps({"type": "mcp", "data": {"result": {"tools": [{"title": "Peek"}]}}})

    session = Session(cast(ClientConnection, Peer()), "ws://here/ws", QUICK)
    with pytest.raises(Unavailable, match="tools/list: not an answer of OpenEnv's protocol"):
        await session.mcp_tools()


async def test_an_answer_that_does_not_come_ends_the_wait_and_the_session(
    server: LocalServer,
) -> None:
    limits = replace(QUICK, call_seconds=0.3)
    session = await Session.opened(await server.address(), limits)
    await session.reset({"fault": "step:hang"})
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"step: no answer within 0\.3 s \(call_seconds\)"):
        await session.step({"number": 1})
    with pytest.raises(Unavailable, match="closed"):
        await session.step({"number": 1})  # the overdue answer would be taken for this one's
    await session.close()
    assert time.monotonic() - began < 3


async def test_a_frame_of_a_gigabyte_is_refused_before_it_is_read() -> None:
    """Its header is enough: no byte of the answer follows here."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = request.split("Sec-WebSocket-Key: ")[1].split("\r\n")[0]
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(f"{head}Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n".encode())
        await reader.read(4096)  # the reset
        writer.write(bytes([0x81, 127]) + (2**30).to_bytes(8, "big"))  # RFC 6455, 5.2
        await reader.read(4096)  # the client's close
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as giant:
        host, port = giant.sockets[0].getsockname()
        session = await Session.opened(f"http://{host}:{port}", QUICK)
        with pytest.raises(Unavailable, match="an answer of more than 1 MiB"):
            await session.reset({})
        await session.close()


async def test_a_full_server_says_how_many_sessions_it_has(tmp_path: Path) -> None:
    with local(launch("one"), tmp_path) as small:
        first, second = await opened(small), await opened(small)
        await first.reset({})
        with pytest.raises(AtCapacity) as refused:
            await second.reset({})
        assert refused.value.most == 1
        await second.close()
        await first.close()


async def test_nobody_at_the_address_is_no_connection() -> None:
    with pytest.raises(NoConnection, match="is the server running"):
        await Session.opened("http://127.0.0.1:9", QUICK)
    with pytest.raises(Unavailable, match="is the server running"):
        await fetch_schema("http://127.0.0.1:9", QUICK)


async def test_what_is_no_openenv_server_is_said_with_what_it_answered(
    server: LocalServer,
) -> None:
    url = f"{await server.address()}/nothing"
    with pytest.raises(BadInput, match=r"nothing/schema is no OpenEnv server's: status 404"):
        await fetch_schema(url, QUICK)
    with pytest.raises(NoConnection, match="opens no session"):
        await Session.opened(url, QUICK)


def test_an_address_may_be_written_in_four_ways() -> None:
    assert addresses("http://a:1/") == ("http://a:1", "ws://a:1")
    assert addresses("ws://a:1") == ("http://a:1", "ws://a:1")
    assert addresses("https://a/x") == ("https://a/x", "wss://a/x")
    assert addresses("a:1") == ("http://a:1", "ws://a:1")
    with pytest.raises(BadInput, match="http://HOST:PORT"):
        addresses("ftp://a:1")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80a", "http://a:99999", "http://a:0", "http://[::1", "ws://:80", ""]
)
async def test_what_is_no_address_is_bad_input_before_anybody_connects(url: str) -> None:
    for ask in (fetch_schema, Session.opened):
        with pytest.raises(BadInput, match=r'^url = ".*": .* an address like http://HOST:PORT'):
            await ask(url, QUICK)
