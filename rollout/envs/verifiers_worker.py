"""Plays the episodes of a verifiers environment, in the virtual environment that it needs.

The Python of another virtual environment runs this file as a program, so it imports only the
standard library and `verifiers`. It reads one JSON request a line from the socket whose descriptor
is its first argument, and answers each with one line. The environment's own loop plays. When it
asks its client for a reply, the request goes out over the socket and the reply comes back, so our
engine samples without a change to the environment. The process ends when the other end of the
socket is closed, for whatever reason.

Requests: `load`, `rows`, `begin`, `reply`, `end`, `close` (see the methods of `Worker`).
Answers: `{"id": …, "ok": …}`, or `{"id": …, "error": {"kind", "text", "where"}}`.
"""

import asyncio
import contextvars
import functools
import importlib.util
import inspect
import json
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import verifiers as vf
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, ToolCall
from verifiers.utils.message_utils import maybe_normalize_messages

POLICY_STOPS = ("no_tools_called",)
"""Stop conditions that mean that the policy said that it is done."""


class Refused(Exception):
    """Something that cannot be played here; trying again does not help."""


class RewardFailed(Exception):
    """A reward function raised, or returned something other than a number."""


# --- one episode ----------------------------------------------------------------------------------

SCORES: contextvars.ContextVar[list[tuple[str, float, float]]] = contextvars.ContextVar("SCORES")
"""The value of each reward function for the episode being scored: (name, value, weight)."""


class Episode:
    """The environment's rollout of one row; it pauses whenever it waits for a reply."""

    def __init__(self, env: Any, row: dict[str, Any], seed: int) -> None:
        self.env = env
        self.asks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.replies: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.known: list[dict[str, Any]] = []  # the messages that the other side knows
        self.task = asyncio.create_task(self._play(row, seed))

    async def _play(self, row: dict[str, Any], seed: int) -> dict[str, Any]:
        # Before the rollout's first await, so that a setup without awaits uses this seed.
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        scores: list[tuple[str, float, float]] = []
        SCORES.set(scores)
        state = await self.env.rollout(row, LoopClient(self), "policy", {})
        error = state.get("error")
        if error is not None and not isinstance(error, vf.ToolError):
            raise error.__cause__ or error
        await self.env.rubric.score_rollout(state)
        await self.env.rubric.cleanup(state)
        stop = state.get("stop_condition") or "error"
        return {
            "stop": stop,
            "by_policy": stop in POLICY_STOPS,
            "told": [plain(m) for m in messages(state.get("final_env_response") or [])],
            "rewards": parts(scores, state["reward"]),
        }

    async def next(self) -> dict[str, Any]:
        """The next request for a reply, or how the episode ended."""
        ask = asyncio.ensure_future(self.asks.get())
        done, _ = await asyncio.wait({ask, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if ask in done:
            return {"ask": ask.result()}
        ask.cancel()
        return {"over": self.task.result()}

    async def ask(self, prompt: Any, tools: Any) -> Any:
        """Called by the environment's loop: hand over what is new, and wait for the reply."""
        talk = [plain(m) for m in prompt]
        seen = len(self.known)
        if talk[:seen] != self.known:
            raise Refused(
                f"{type(self.env).__name__} rewrites the conversation instead of adding to it"
                " (get_prompt_messages); only conversations that grow can be trained on"
            )
        self.asks.put_nowait({"messages": talk[seen:], "tools": tools})
        self.known = talk
        reply = await self.replies.get()
        if reply is None:  # a limit of the run: the loop ends as at a full context
            raise vf.OverlongPromptError("a limit of the run was reached")
        message = ResponseMessage(
            content=reply["text"],
            tool_calls=[
                ToolCall(id=f"call-{i}", name=c["name"], arguments=json.dumps(c["arguments"]))
                for i, c in enumerate(reply["calls"], len(self.known))
            ]
            or None,
            finish_reason="length"
            if reply["finish_reason"] == "length"
            else ("tool_calls" if reply["calls"] else "stop"),
            is_truncated=reply["finish_reason"] == "length",
        )
        self.known = [*talk, plain(message)]
        return Response(id="reply", created=int(time.time()), model="policy", message=message)


class LoopClient(Client):  # type: ignore[misc]  # its package is not installed here
    """The environment's client: it passes each request to the episode that makes it."""

    def __init__(self, episode: Episode) -> None:
        super().__init__(None)
        self._episode = episode

    def setup_client(self, config: Any) -> None:
        return None

    async def to_native_tool(self, tool: Any) -> dict[str, Any]:
        return schema(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Any:
        return await self._episode.ask(prompt, tools)

    async def raise_from_native_response(self, response: Any) -> None:
        return None

    async def from_native_response(self, response: Any) -> Any:
        return response

    async def close(self) -> None:
        return None


def schema(tool: Any) -> dict[str, Any]:
    """A tool as chat templates take it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def messages(given: Any) -> Any:
    """An environment's output (a text, or messages of any form) as messages."""
    return maybe_normalize_messages(given, field_name="env_response")


def plain(message: Any) -> dict[str, Any]:
    """A message as JSON, its content as one text."""
    calls = [
        {"name": c.name, "arguments": c.arguments}
        for c in getattr(message, "tool_calls", None) or ()
    ]
    return {
        "role": message.role,
        "content": text_of(message.content),
        **({"tool_calls": calls} if calls else {}),
    }


def text_of(content: Any) -> str:
    """The text of a message's content. Raises `Refused` for an image or audio."""
    if content is None or isinstance(content, str):
        return content or ""
    kinds = [part["type"] for part in content]
    if set(kinds) - {"text"}:
        raise Refused(f"a message holds {', '.join(sorted(set(kinds)))}; only text can be played")
    return "".join(part["text"] for part in content)


# --- scoring --------------------------------------------------------------------------------------


def rubrics(rubric: Any) -> Iterator[Any]:
    """A rubric and all rubrics in it."""
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from rubrics(part)


def group_functions(rubric: Any) -> list[Any]:
    """The functions of one rubric, not of the rubrics in it, that score a whole group at once."""
    return [f for f in rubric.funcs if rubric._is_group_func(f)]


def make_strict(rubric: Any) -> None:
    """Make a rubric record the value of each function, and raise if one fails.

    verifiers logs a reward function that raises and takes 0 as its value, which would be trained
    on.
    """
    call = rubric._call_individual_reward_func

    async def strict(func: Any, state: Any) -> float:
        failure: list[Exception] = []
        name = getattr(func, "__name__", repr(func))

        async def checked(value: Any) -> float:
            try:
                return float(await value if inspect.isawaitable(value) else value)
            except Exception as e:
                failure.append(e)
                raise

        @functools.wraps(func)
        async def watched(*args: Any, **kwargs: Any) -> float:
            try:
                value = func(*args, **kwargs)
            except Exception as e:
                failure.append(e)
                raise
            return await checked(value)

        value: float = await call(watched, state)
        if failure:
            raise RewardFailed(f"reward function {name}: {failure[0]!r}") from failure[0]
        SCORES.get().append((name, value, rubric.weights[rubric.funcs.index(func)]))
        return value

    rubric._call_individual_reward_func = strict


def parts(scores: list[tuple[str, float, float]], reward: float) -> list[list[Any]]:
    """[name, value, weight] of each reward function; names that occur twice are numbered. If a
    rubric's reward is not the weighted sum of its functions, that reward is the only part with a
    weight and the functions have weight 0.
    """
    seen: dict[str, int] = {}
    named: list[list[Any]] = []
    for name, value, weight in scores:
        seen[name] = seen.get(name, 0) + 1
        named.append([name if seen[name] == 1 else f"{name}_{seen[name]}", value, float(weight)])
    if abs(sum(v * w for _, v, w in named) - reward) <= 1e-6 * max(1.0, abs(reward)):
        return named
    return [["reward", float(reward), 1.0], *([n, v, 0.0] for n, v, _ in named if n != "reward")]


# --- the worker -----------------------------------------------------------------------------------


class Worker:
    """Answers requests about one environment."""

    def __init__(self) -> None:
        self.env: Any = None
        self.episodes: dict[int, Episode] = {}

    async def load(self, use: str, config: dict[str, Any]) -> dict[str, Any]:
        """Load the environment: a package by its name, or a file with `load_environment`."""
        if use.endswith(".py"):
            module = load_file(use)
            if not hasattr(module, "load_environment"):
                raise Refused(f"{use}: it has no load_environment")
            self.env = module.load_environment(**config)
        else:
            self.env = vf.load_environment(use, **config)
            module = sys.modules[use.replace("-", "_").split("/")[-1]]
        if not isinstance(self.env, vf.Environment):
            raise Refused(f"{use}: load_environment gives {type(self.env).__name__}")
        if self.env.rubric.has_group_rewards:
            grouped = (f.__name__ for r in rubrics(self.env.rubric) for f in group_functions(r))
            raise Refused(
                f"{use}: a reward function scores a whole group at once ({', '.join(grouped)});"
                " here each episode is scored alone, so give the rubric functions of one"
                " completion, and name a function that compares conversations in group_rewards"
            )
        if not isinstance(self.env, vf.MultiTurnEnv):
            raise Refused(f"{use}: {type(self.env).__name__} is not a MultiTurnEnv")
        for rubric in rubrics(self.env.rubric):
            make_strict(rubric)
        return {
            "class": type(self.env).__name__,
            "version": vf.__version__,
            "file": module.__file__,
            "tools": [schema(t) for t in self.env.tool_defs or ()],
            "rewards": [
                [n, float(w)]
                for n, w in zip(
                    self.env.rubric._get_reward_func_names(),
                    self.env.rubric._get_reward_weights(),
                    strict=True,
                )
            ],
        }

    async def rows(self, split: str, n: int, seed: int | None) -> list[Any]:
        """`n` rows of the "train" or "eval" dataset, shuffled by `seed` unless it is None."""
        take = self.env.get_dataset if split == "train" else self.env.get_eval_dataset
        return [row_of(row) for row in take(n, seed)]

    async def begin(self, episode: int, row: dict[str, Any], seed: int) -> dict[str, Any]:
        """Start an episode of a row; return its first request."""
        self.episodes[episode] = Episode(self.env, row, seed)
        return await self.episodes[episode].next()

    async def reply(self, episode: int, **reply: Any) -> dict[str, Any]:
        """Pass on the policy's reply; return what follows."""
        self.episodes[episode].replies.put_nowait(reply)
        return await self.episodes[episode].next()

    async def end(self, episode: int) -> dict[str, Any]:
        """A limit was reached: end the rollout where it is, and score it."""
        self.episodes[episode].replies.put_nowait(None)
        return await self.episodes[episode].next()

    async def close(self, episode: int) -> None:
        """End an episode if it still runs, and remove it."""
        held = self.episodes.pop(episode, None)
        if held is not None and not held.task.done():
            held.task.cancel()
            await asyncio.wait({held.task})


def load_file(path: str) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location("environment_file", path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path}: it cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def row_of(row: dict[str, Any]) -> Any:
    """A dataset's row as JSON, without columns that are None, because datasets fill those in."""
    return json.loads(json.dumps({k: v for k, v in row.items() if v is not None}, default=str))


def error_of(e: BaseException) -> dict[str, str]:
    """An exception as JSON: its kind, its text, and the file and line it came from."""
    kind = "refused" if isinstance(e, Refused) else "failed"
    text = str(e) if isinstance(e, (Refused, RewardFailed)) else f"{type(e).__name__}: {e}"
    while e.__cause__ is not None:
        e = e.__cause__
    frames = traceback.extract_tb(e.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames and kind == "failed" else ""
    return {"kind": kind, "text": text, "where": where}


async def serve(channel: socket.socket) -> None:
    """Answer requests until the process is ended."""
    loop = asyncio.get_running_loop()
    worker = Worker()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(request: dict[str, Any]) -> None:
        asked = request["id"]
        try:
            ok = await getattr(worker, request["do"])(**request["with"])
            line = json.dumps({"id": asked, "ok": ok})
        except Exception as e:
            traceback.print_exc()
            line = json.dumps({"id": asked, "error": error_of(e)})
        await asyncio.to_thread(send, line)

    sending = threading.Lock()

    def send(line: str) -> None:
        with sending:
            channel.sendall(line.encode() + b"\n")

    def start(line: bytes) -> None:
        task = loop.create_task(answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        with channel.makefile("rb") as lines:
            for line in lines:
                loop.call_soon_threadsafe(start, line)
        os._exit(0)  # the other side is gone, and an environment that hangs must not outlive it

    threading.Thread(target=read, daemon=True).start()
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
