"""The wire protocol of an OpenEnv server: a connection is a session, and a session is an episode.

Written against `openenv` 0.10 and without it: JSON over a websocket at `/ws` (reset, step, close,
MCP's tools/list), and the schema of an action over HTTP at `/schema`. Every request is answered by
one message, in order and without an id, so a connection on which an answer is overdue is closed and
never read again. A failure here is the environment's (`Unavailable`); a server's complaint about
one action is `ActionRefused`, which the policy is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from fieldkit.client.address import host_of, proxied
from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.json_text import parse_json
from rollout.envs.base import Late
from rollout.envs.reward_functions import checked

MIB = 1024**2
MAX_BYTES = 16 * MIB
"""A larger answer means a broken server: a policy reads a few thousand tokens."""

_HANDSHAKE_SECONDS = 10.0
_CLOSE_SECONDS = 5.0  # for a server to close an environment; then the connection is closed
_SHOWN = 200  # characters of an answer that an error quotes
_TOLD = 1000  # characters of an environment's own error

CAPACITY = "CAPACITY_REACHED"
_OF_THE_ACTION = ("VALIDATION_ERROR", "EXECUTION_ERROR")


class ActionRefused(Exception):
    """The server does not accept the action, or the environment raised on it. The session
    continues."""


class NoConnection(Unavailable):
    """No session can be opened at that address now."""


class ResetRaised(Unavailable):
    """The environment raised in reset."""


class HungUp(Unavailable):
    """The server closed the connection instead of answering; it may have ended."""


class AtCapacity(Exception):
    """The server has no session left. most: how many it has in all, where it says so."""

    def __init__(self, most: int | None) -> None:
        super().__init__(most)
        self.most = most


@dataclass(frozen=True)
class Answer:
    """The answer to reset and step. reward: None if the environment gives none."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool


@dataclass(frozen=True)
class Limits:
    """Time limits. call_seconds: for one answer; connect_seconds: until a session is open, which
    includes a restart of the server."""

    call_seconds: float = 60.0
    connect_seconds: float = 60.0
    max_bytes: int = MAX_BYTES


def addresses(url: str) -> tuple[str, str]:
    """The HTTP and the websocket form of a server's address. Raises `BadInput`."""
    text = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
    scheme, _, rest = text.partition("://")
    forms = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}
    if scheme not in forms or not host_of(text):
        raise BadInput(f'url = "{url}": an OpenEnv server has an address like http://HOST:PORT')
    socket = forms[scheme]
    return f"{socket.replace('ws', 'http')}://{rest}", f"{socket}://{rest}"


async def fetch_schema(url: str, limits: Limits) -> Mapping[str, Any]:
    """The JSON schema of the server's action. Raises `Unavailable` if nothing answers, and
    `BadInput` if the program there is not an OpenEnv server."""
    where = f"{addresses(url)[0]}/schema"
    try:
        async with httpx.AsyncClient(timeout=limits.call_seconds, trust_env=proxied(where)) as http:
            answer = await http.get(where)
    except httpx.RequestError as e:
        raise Unavailable(f"{where}: no answer ({e!r}); is the server running?") from e
    if answer.status_code >= 500:
        raise Unavailable(f"{where}: status {answer.status_code}")
    with contextlib.suppress(ValueError):
        schema = answer.json()
        if isinstance(schema, dict) and isinstance(schema.get("action"), dict):
            return dict(schema["action"])
    raise BadInput(
        f"{where} is no OpenEnv server's: status {answer.status_code}, {answer.text[:_SHOWN]!r}"
    )


class Session:
    """An open session. Make one with `opened`, and `close` it in any case.

    Every method raises `Unavailable` if the connection or the protocol breaks; the message names
    the address and the request.
    """

    def __init__(self, connection: ClientConnection, url: str, limits: Limits) -> None:
        self._connection = connection
        self._url = url
        self._limits = limits
        self._usable = True

    @classmethod
    async def opened(cls, url: str, limits: Limits) -> Session:
        """Connect, or raise `NoConnection`. A full server refuses only the first request."""
        where = f"{addresses(url)[1]}/ws"
        try:
            connection = await connect(
                where,
                open_timeout=min(limits.connect_seconds, _HANDSHAKE_SECONDS),
                # A step may hold the server's event loop for longer than a ping may take.
                ping_interval=None,
                close_timeout=_CLOSE_SECONDS,
                max_size=limits.max_bytes,
                proxy=True if proxied(where) else None,
            )
        except InvalidURI as e:
            raise BadInput(f'url = "{url}": {e}') from e
        except InvalidHandshake as e:
            raise NoConnection(f"{where}: it answers, but opens no session ({e})") from e
        except (OSError, TimeoutError) as e:
            raise NoConnection(f"{where}: no connection ({e}); is the server running?") from e
        return cls(connection, where, limits)

    async def reset(self, options: Mapping[str, Any]) -> Answer:
        """Begin an episode. Raises `AtCapacity`, which ends the session, and `ResetRaised` with the
        environment's message."""
        try:
            return self._read(await self._ask("reset", dict(options)), "reset")
        except ActionRefused as e:
            raise ResetRaised(f"{self._url}: reset: {e}") from e

    async def step(self, action: Mapping[str, Any]) -> Answer:
        """Take one action. Raises `ActionRefused`."""
        return self._read(await self._ask("step", dict(action)), "step")

    async def mcp_tools(self) -> list[Mapping[str, Any]]:
        """The tools of an environment whose action is an MCP call."""
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = await self._ask("mcp", request)
        data = answer.get("data")
        result = data.get("result") if isinstance(data, dict) else None
        tools = result.get("tools") if isinstance(result, dict) else None
        if not isinstance(tools, list) or not all(map(_is_mcp_tool, tools)):
            raise self._malformed("tools/list", answer)
        return tools

    async def close(self) -> None:
        """End the session, and wait until the server has closed its environment, because only then
        can it open another. May be called again."""
        if self._usable:
            self._usable = False
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._connection.send(json.dumps({"type": "close"}))
                    await self._connection.wait_closed()
                    return
        # Do not wait for a peer that does not answer.
        self._connection.transport.abort()
        await self._connection.wait_closed()

    # -- one request and its answer ----------------------------------------------------------------

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._usable:
            raise Unavailable(f"{self._url}: {kind}: the session is closed")
        self._usable = False  # until the answer to this request is here
        raw = await self._exchange(kind, json.dumps({"type": kind, "data": data}))
        answer = self._decoded(kind, raw)
        if answer.get("type") == "error":
            self._raise(kind, answer)
        self._usable = True
        return answer

    async def _exchange(self, kind: str, request: str) -> str | bytes:
        seconds = self._limits.call_seconds
        try:
            async with asyncio.timeout(seconds):
                # A full server sends its error first and closes the connection: read the error.
                with contextlib.suppress(ConnectionClosed):
                    await self._connection.send(request)
                return await self._connection.recv()
        except TimeoutError as e:
            late = f"no answer within {seconds:g} s (call_seconds)"
            raise Late(f"{self._url}: {kind}: {late}") from e
        except ConnectionClosed as e:
            if e.sent is not None and e.sent.code == 1009:  # RFC 6455: message too big
                most = self._limits.max_bytes / MIB
                raise Unavailable(
                    f"{self._url}: {kind}: an answer of more than {most:g} MiB"
                ) from e
            raise HungUp(f"{self._url}: {kind}: the server hung up ({e})") from e

    def _decoded(self, kind: str, raw: str | bytes) -> Mapping[str, Any]:
        try:
            answer = parse_json(raw, kind)
        except BadInput as e:
            raise self._malformed(kind, raw) from e
        if not isinstance(answer, dict):
            raise self._malformed(kind, raw)
        return answer

    def _raise(self, kind: str, answer: Mapping[str, Any]) -> None:
        data = answer.get("data")
        if not isinstance(data, dict) or not isinstance(code := data.get("code"), str):
            raise self._malformed(kind, answer)
        if code == CAPACITY:
            most = data.get("max_sessions")
            raise AtCapacity(most if isinstance(most, int) and most > 0 else None)
        if code in _OF_THE_ACTION:
            self._usable = True
            raise ActionRefused(_told(data))
        raise Unavailable(f"{self._url}: {kind}: {code}: {_told(data)}")

    def _read(self, answer: Mapping[str, Any], kind: str) -> Answer:
        data = answer.get("data")
        if answer.get("type") != "observation" or not isinstance(data, dict):
            raise self._malformed(kind, answer)
        observation, reward, done = (data.get(k) for k in ("observation", "reward", "done"))
        if not isinstance(observation, dict) or not isinstance(done, bool):
            raise self._malformed(kind, answer)
        if reward is not None and not isinstance(reward, bool | int | float):
            raise self._malformed(kind, answer)
        paid = checked(reward, f"{self._url}: {kind}: the environment's reward")
        return Answer(observation, paid, done)

    def _malformed(self, kind: str, answer: Any) -> Unavailable:
        self._usable = False
        shown = answer if isinstance(answer, str | bytes) else json.dumps(answer)
        return Unavailable(
            f"{self._url}: {kind}: not an answer of OpenEnv's protocol: {shown[:_SHOWN]!r}"
        )


def _is_mcp_tool(listed: Any) -> bool:
    match listed:
        case {"name": str()}:
            return True
    return False


def _told(data: Mapping[str, Any]) -> str:
    """An error's text; field by field if an action does not fit the schema."""
    fields = [
        f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg', '')}"
        for e in data.get("errors") or ()
        if isinstance(e, dict)
    ]
    return "; ".join(fields) or " ".join(str(data.get("message", "")).split())[:_TOLD]
