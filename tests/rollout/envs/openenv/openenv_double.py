"""A small server of OpenEnv's protocol, and every way in which one can fail.

`openenv` brings half a gigabyte of packages that do not go with ours, so it is in no environment
that `make test` sets up: there the client and the ownership of servers are tested against this one.
`test_openenv_real.py` (`make test-envs`) plays the same talk with it and with a server made by
`openenv`'s own `create_app`, and finds the answers equal.

The game: guess a number from 1 to 10. The reset option `fault` names what goes wrong, and when:
"reset:hang" never answers the reset, "step:die" ends the process in the first step.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

ACTION = {
    "title": "GuessAction",
    "description": "Guess the number.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "metadata": {"title": "Metadata", "type": "object", "additionalProperties": True},
        "number": {"title": "Number", "type": "integer", "description": "from 1 to 10"},
    },
    "required": ["number"],
}
MCP_ACTION = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {
        "type": {"const": "call_tool", "type": "string", "default": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["tool_name"],
}
TOOLS = [
    {"name": "peek", "description": "See the number.", "inputSchema": {"type": "object"}},
    {
        "name": "guess",
        "description": "Guess the number.",
        "inputSchema": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
        },
    },
]

Sent = dict[str, Any]


class Problem(Exception):
    """An error answer. code and more: as the protocol has them."""

    def __init__(self, code: str, message: str, **more: Any) -> None:
        self.told = more["errors"][0]["msg"] if "errors" in more else message
        self.answer = {"type": "error", "data": {"message": message, "code": code, **more}}


class Game:
    """One session's environment."""

    def __init__(self, seed: int | None, fault: str) -> None:
        self.number = random.Random(seed).randint(1, 10)
        self.fault = fault

    def seen(self, text: str, reward: float | None = None, done: bool = False) -> Sent:
        observation = {"metadata": {}, "text": text}
        return {
            "type": "observation",
            "data": {"observation": observation, "reward": reward, "done": done},
        }

    def call(self, name: str, arguments: Sent) -> Sent:
        """A call of an MCP tool, as `CallToolObservation` tells it."""
        if name == "peek":
            return self.told(name, str(self.number))
        try:
            answer = self.guess(_checked(arguments))
        except Problem as e:
            return self.told(name, None, e.told)
        data = answer["data"]
        return self.told(name, data["observation"]["text"], None, data["reward"], data["done"])

    def told(
        self,
        name: str,
        text: str | None,
        error: str | None = None,
        reward: float | None = None,
        done: bool = False,
    ) -> Sent:
        result = None if text is None else {"content": [{"type": "text", "text": text}]}
        failure = None if error is None else {"error_type": "invalid_args", "message": error}
        seen = {"metadata": {}, "tool_name": name, "result": result, "error": failure}
        data = {"observation": seen, "reward": reward, "done": done}
        return {"type": "observation", "data": data}

    def guess(self, number: int) -> Sent:
        if not 1 <= number <= 10:
            raise Problem("EXECUTION_ERROR", "the number is from 1 to 10")
        if number == self.number:
            return self.seen("Right.", 1.0, True)
        return self.seen("Higher." if number < self.number else "Lower.", -0.1)


class Double:
    """The app. sessions: as `max_concurrent_envs`. mcp: the action is a call of an MCP tool."""

    def __init__(self, sessions: int, mcp: bool = False) -> None:
        self.sessions, self.mcp = sessions, mcp
        self.open = 0
        self.closed = 0
        self.routes = Starlette(
            routes=[
                Route("/schema", self.schema),
                Route("/count", self.count),
                WebSocketRoute("/ws", self.session),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.routes(scope, receive, send)

    async def schema(self, request: Request) -> JSONResponse:
        return JSONResponse({"action": MCP_ACTION if self.mcp else ACTION})

    async def count(self, request: Request) -> JSONResponse:
        """No part of the protocol: how many sessions are open and were closed, for the tests."""
        return JSONResponse({"open": self.open, "closed": self.closed})

    async def session(self, socket: WebSocket) -> None:
        await socket.accept()
        if self.open >= self.sessions:
            full = Problem(
                "CAPACITY_REACHED",
                f"Server at capacity: {self.open}/{self.sessions} sessions active",
                active_sessions=self.open,
                max_sessions=self.sessions,
            )
            await socket.send_json(full.answer)
            await socket.close()
            return
        self.open += 1
        try:
            await self._talk(socket)
        except WebSocketDisconnect:
            return
        finally:
            self.open -= 1
            self.closed += 1
        await socket.close()

    async def _talk(self, socket: WebSocket) -> None:
        game = Game(None, "")
        while True:
            try:
                asked = json.loads(await socket.receive_text())
                data = asked.get("data", {})
                if asked.get("type") == "close":
                    return
                if asked.get("type") == "reset":
                    game = Game(data.get("seed"), data.get("fault", ""))
                if game.fault.startswith(f"{asked.get('type')}:"):
                    await misbehave(socket, game.fault.partition(":")[2])
                    continue
                answer = self._answer(game, asked.get("type", ""), data)
            except json.JSONDecodeError as e:
                answer = Problem("INVALID_JSON", f"Invalid JSON: {e}").answer
            except Problem as e:
                answer = e.answer
            await socket.send_json(answer)

    def _answer(self, game: Game, kind: str, data: Sent) -> Sent:
        if kind == "reset":
            return game.seen("Guess my number.")
        if kind == "mcp" and data["method"] == "tools/list":
            result = {"jsonrpc": "2.0", "id": data["id"], "result": {"tools": TOOLS}}
            return {"type": "mcp", "data": result}
        if kind == "step" and self.mcp:
            return game.call(data["tool_name"], data["arguments"])
        if kind == "step":
            return game.guess(_checked(data))
        raise Problem("UNKNOWN_TYPE", f"Unknown message type: {kind}")


def _checked(action: Sent) -> int:
    errors = [
        {"type": "extra_forbidden", "loc": [k], "msg": "Extra inputs are not permitted"}
        for k in action
        if k not in ("number", "metadata")
    ]
    if "number" not in action:
        errors.insert(0, {"type": "missing", "loc": ["number"], "msg": "Field required"})
    if errors:
        raise Problem("VALIDATION_ERROR", "Invalid message", errors=errors)
    try:
        return int(action["number"])
    except ValueError:
        told = "Input should be a valid integer, unable to parse string as an integer"
        errors = [{"type": "int_parsing", "loc": ["number"], "msg": told}]
        raise Problem("VALIDATION_ERROR", "Invalid message", errors=errors) from None


async def misbehave(socket: WebSocket, how: str) -> None:
    """One of the faults: answers wrongly, or does not return."""
    match how:
        case "hang":
            await asyncio.Event().wait()
        case "die":
            print("the board is lost", flush=True)
            os._exit(7)
        case "hang_up":
            await socket.close(1011)
        case "raise":
            raise Problem("EXECUTION_ERROR", "the ball is lost")
        case "needs":
            needs = "2 required positional arguments: 'level' and 'size'"
            raise Problem("EXECUTION_ERROR", f"Guess.reset() missing {needs}")
        case "factory":
            raise Problem("FACTORY_ERROR", "Failed to create environment from factory 'Guess'")
        case "huge":
            await socket.send_json(Game(None, "").seen("x" * 2**21))
        case "text":
            await socket.send_text("<html>")
        case "list":
            await socket.send_json([1, 2])
        case "no_done":
            await socket.send_json({"type": "observation", "data": {"observation": {}}})
        case "nan":
            await socket.send_text(json.dumps(Game(None, "").seen("", float("nan"))))
        case "huge_reward":
            await socket.send_json(Game(None, "").seen("", 10**400))
        case "reward_text":
            answer = Game(None, "").seen("")
            await socket.send_json({**answer, "data": {**answer["data"], "reward": "much"}})
        case _:
            raise AssertionError(how)


app = Double(64)
many = Double(256)
two = Double(2)
one = Double(1)
tools = Double(64, mcp=True)
