"""What every worker is made of: a program in another virtual environment that plays episodes.

A worker loads this file from beside itself, because it is started with `-I`, which leaves its own
folder off the path; so this file imports only the standard library. The worker reads one JSON
request a line from the socket whose descriptor is its first argument, and answers each with one
line: `{"id": …, "ok": …}`, or `{"id": …, "error": {"kind", "text", "where"}}`. It ends, with all
that it started, when the other end of the socket is closed, for whatever reason.

Requests are the methods of `Worker`: `load`, `rows`, `begin`, `reply`, `end`, `close`.
"""

import asyncio
import ctypes
import importlib.util
import inspect
import json
import os
import random
import select
import signal
import socket
import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

CLOSE_SECONDS = 5.0
"""How long episodes may take to end what they have started, once the other side is gone."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Refused(Exception):
    """Something that cannot be played here; trying again does not help."""


class Failed(Exception):
    """The environment failed. where: file:line, if it is known."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where


class Episode:
    """A framework's loop plays one row; it pauses whenever it waits for a reply.

    A subclass sets `task`, which plays, and calls `ask` where its framework asks for a reply.
    """

    task: "asyncio.Task[dict[str, Any]]"

    def __init__(self, kind: str) -> None:
        self.kind = kind  # the name of the environment's class
        self.asks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.replies: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.known: list[dict[str, Any]] = []  # the messages that the other side knows

    async def next(self) -> dict[str, Any]:
        """The next request for a reply, or how the episode ended."""
        ask = asyncio.ensure_future(self.asks.get())
        done, _ = await asyncio.wait({ask, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if ask in done:
            return {"ask": ask.result()}
        ask.cancel()
        return {"over": self.task.result()}

    async def ask(self, talk: list[dict[str, Any]], tools: Any) -> dict[str, Any] | None:
        """Hand over what is new in the conversation, and wait for the reply; None if a limit of the
        run ends the episode."""
        seen = len(self.known)
        if talk[:seen] != self.known:
            raise Refused(
                f"{self.kind} rewrites the conversation instead of adding to it"
                " (get_prompt_messages); only conversations that grow can be trained on"
            )
        self.asks.put_nowait({"messages": talk[seen:], "tools": tools})
        self.known = talk
        return await self.replies.get()

    async def close(self) -> None:
        """End it if it still runs."""
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})


class Worker:
    """Answers requests about one environment. A subclass loads it, and begins its episodes."""

    def __init__(self) -> None:
        self.env: Any = None
        self.episodes: dict[int, Episode] = {}

    async def load(self, use: str, config: dict[str, Any]) -> None:
        """Load the environment."""
        raise NotImplementedError

    async def rows(self, split: str, n: int, seed: int | None) -> list[Any]:
        """`n` rows of the "train" or "eval" dataset, shuffled by `seed` unless it is None."""
        raise NotImplementedError

    def episode(self, row: dict[str, Any], seed: int, number: int) -> Episode:
        """Start an episode of a row."""
        raise NotImplementedError

    async def begin(self, episode: int, row: dict[str, Any], seed: int) -> dict[str, Any]:
        """Start an episode of a row; return its first request."""
        self.episodes[episode] = self.episode(row, seed, episode)
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
        if held is not None:
            await held.close()

    async def close_all(self) -> None:
        """End every episode, with what it started."""
        await asyncio.gather(*map(self.close, [*self.episodes]), return_exceptions=True)


def seed_generators(seed: int) -> None:
    """Seed Python's generator, and NumPy's where it is imported."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def plain(message: Any) -> dict[str, Any]:
    """A framework's message as JSON, its content as one text. Raises `Refused` for content that is
    no text."""
    calls = [
        {"name": c.name, "arguments": c.arguments}
        for c in getattr(message, "tool_calls", None) or ()
    ]
    return {
        "role": message.role,
        "content": _text_of(message.content),
        **({"tool_calls": calls} if calls else {}),
    }


def _text_of(content: Any) -> str:
    """The text of a message's content: a text, or parts as mappings or as objects."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, dict) else vars(part) for part in content]
    kinds = {part["type"] for part in parts}
    if kinds - {"text"}:
        raise Refused(f"a message holds {', '.join(sorted(kinds))}; only text can be played")
    return "".join(part["text"] for part in parts)


def load_file(path: str, name: str = "environment_file") -> ModuleType:
    """A file as a module, which may import the modules beside it."""
    sys.path.append(str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path}: it cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def plain_row(row: dict[str, Any]) -> Any:
    """A dataset's row as JSON, without columns that are None, because datasets fill those in."""
    return json.loads(json.dumps({k: v for k, v in row.items() if v is not None}, default=str))


def error_of(e: BaseException) -> dict[str, str]:
    """An exception as JSON: its kind, its text, and the file and line it came from."""
    kind = "refused" if isinstance(e, Refused) else "failed"
    text = str(e) if isinstance(e, (Refused, Failed)) else f"{type(e).__name__}: {e}"
    where = getattr(e, "where", "")
    while e.__cause__ is not None:
        e = e.__cause__
    if kind == "failed":
        frames = traceback.extract_tb(e.__traceback__)
        where = where or last_line([(f.filename, f.lineno) for f in frames])
    return {"kind": kind, "text": text, "where": where}


def line_in(function: Any, e: BaseException) -> str:
    """file:line of the last frame of an exception that is beside a function's file, not of a
    library that it uses; else of the function. Empty if the function is in no file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    home = Path(code.co_filename).parent
    frames = traceback.extract_tb(e.__traceback__)
    theirs = [(f.filename, f.lineno) for f in frames if Path(f.filename).parent == home]
    return "{}:{}".format(*(theirs or [(code.co_filename, code.co_firstlineno)])[-1])


def last_line(frames: list[tuple[str, Any]]) -> str:
    """file:line of the last frame that is neither ours nor in an installed package, else of the
    last one that is not in Python's own library, else of the last one; empty if there is none."""
    python = ("<frozen ", sysconfig.get_path("stdlib"))
    installed = (*python, sysconfig.get_path("purelib"), str(Path(__file__).parent))
    theirs = [frame for frame in frames if not frame[0].startswith(installed)]
    theirs = theirs or [frame for frame in frames if not frame[0].startswith(python)] or frames
    return "{}:{}".format(*theirs[-1]) if theirs else ""


async def serve(worker: Worker, channel: socket.socket) -> None:
    """Answer requests until the process is ended."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(request: dict[str, Any]) -> None:
        asked = request["id"]
        try:
            ok = await getattr(worker, request["do"])(**request["with"])
            line = json.dumps({"id": asked, "ok": ok})
        except (Exception, asyncio.CancelledError) as e:  # the second from the episode itself
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
        # The other side is gone, and `_guard` waits no longer than CLOSE_SECONDS.
        asyncio.run_coroutine_threadsafe(worker.close_all(), loop).result()
        _end_all(os.getpid())

    threading.Thread(target=read, daemon=True).start()
    await loop.create_future()


def _guard(channel: socket.socket) -> None:
    """Start a process that ends this one's group `CLOSE_SECONDS` after the other side is gone.

    No thread can do that: a tool may hold the interpreter's lock for ever (a regular expression).
    """
    worker = os.getpid()
    if os.fork():
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == worker:  # else it ended before the kernel was asked
        gone = select.poll()
        gone.register(channel, select.POLLRDHUP)
        gone.poll()
        time.sleep(CLOSE_SECONDS)
        _end_all(worker)
    os._exit(0)


def _end_all(worker: int) -> None:
    """End what a worker has started, in whatever session, and its group, this process among it."""
    parents: dict[int, list[int]] = {}
    for folder in (f for f in Path("/proc").iterdir() if f.name.isdigit()):
        try:
            stat = (folder / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(stat.rpartition(b")")[2].split()[1]), []).append(int(folder.name))
    started = parents.get(worker, [])
    for pid in started:  # which grows
        started += parents.get(pid, [])
    for pid in set(started) - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os.killpg(0, signal.SIGKILL)


def run(worker: Worker) -> None:
    """Serve on the socket of the first argument."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    _guard(channel)
    asyncio.run(serve(worker, channel))
