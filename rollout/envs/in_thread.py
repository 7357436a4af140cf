"""Calls a function of user code without blocking the event loop.

TRL calls a class from one thread, and some objects (an SQLite connection) work in no other, so each
environment has a thread of its own. It is a daemon thread: a call that hangs cannot be ended, and
must not keep the process from ending. Coroutines run on the event loop. Both have a time limit.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import FrameType
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from rollout.envs.base import Late
from rollout.envs.user_code import place_of

_HERE = Path(__file__).parent
_CALLERS = (_HERE, _HERE.parent, _HERE.parents[1] / "scripts" / "environments")
"""The folders whose own files call user code."""
LIBRARIES = ("<frozen ", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
"""How the paths of code begin that user code calls."""


class PinnedThread:
    """Runs functions one after the other in one thread, which starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self.hung = False
        """A call took too long; later calls would not run."""

    async def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """Return the function's result or raise its exception; after `seconds` set `hung` and raise
        `TimeoutError`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._asked.put((future, function))
        result = asyncio.wrap_future(future)
        done, _ = await asyncio.wait([result], timeout=seconds)
        if not done:
            self.hung = True
            result.cancel()  # nobody asks for what comes later
            raise TimeoutError
        return result.result()

    def stack(self) -> list[tuple[FrameType, int]]:
        """Where the thread is, as `traceback.walk_tb` gives it."""
        ident = self._thread.ident if self._thread else None
        frame = sys._current_frames().get(ident or 0)
        return [*traceback.walk_stack(frame)][::-1] if frame else []

    def end(self) -> None:
        """Let the thread end after the calls made so far."""
        self._asked.put(None)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, function = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except (StopIteration, asyncio.CancelledError, CancelledError) as e:
                future.set_exception(_as_error(e))
            except BaseException as e:  # the caller decides, as with an executor
                future.set_exception(e)


def _as_error(e: BaseException) -> RuntimeError:
    """An exception of user code that asyncio takes for something else: a future never ends with
    StopIteration, and with CancelledError whoever waits is cancelled."""
    return RuntimeError(f"it raised {type(e).__name__}").with_traceback(e.__traceback__)


async def in_thread(
    call: Callable[..., Any],
    arguments: Mapping[str, Any],
    seconds: float,
    what: str,
    thread: PinnedThread | None = None,
) -> Any:
    """`call(**arguments)`, in the given thread or in one of its own.

    Raises what the call raises, and `Unavailable` that begins with `what` after `seconds`, and for
    a call of `sys.exit`, whose code would otherwise become the phase's and mean something else.
    A call that sets a signal is `BadInput`: it would fail each time, and look like a mistake of the
    policy.
    """
    try:
        return await _called(call, arguments, seconds, what, thread)
    except Exception as e:
        if not sets_signal(e):
            raise
        raise BadInput(f"{what}: {SIGNAL_SET} ({line_of(e, call)})") from e
    except SystemExit as e:
        raise Unavailable(f"{what}: it called sys.exit({e.code!r}) ({line_of(e, call)})") from e


SIGNAL_SET = (
    "it sets a signal, as for a time limit, which Python allows in the main thread alone, and an"
    " environment has a thread of its own; leave the limit to call_seconds, or use one of the"
    " library that is called"
)
"""What is said of such a call."""


_SETS = (signal.signal.__code__, asyncio.SelectorEventLoop.add_signal_handler.__code__)
"""Of Python's functions that raise `ValueError` outside of the main thread."""


def sets_signal(e: BaseException | None) -> bool:
    """Whether user code raised this because it set a signal outside of the main thread.

    Only if Python raised it, and all code on the way there is in files. A policy may write the text
    of an exception, and code of a policy that a tool executes, which may set a signal too, comes
    through a frame without a file (`<string>`, `<frozen runpy>`).
    """
    files: set[str] = set()
    seen: set[int] = set()
    while e is not None and id(e) not in seen:
        seen.add(id(e))
        codes = [frame.f_code for frame, _ in traceback.walk_tb(e.__traceback__)]
        files.update(code.co_filename for code in codes)
        by_python = bool(codes) and codes[-1] in _SETS
        if type(e) is ValueError and by_python and "main thread" in str(e):
            return all(Path(file).is_absolute() and Path(file).is_file() for file in files)
        e = e.__context__ if e.__cause__ is None else e.__cause__
    return False


async def _called(
    call: Callable[..., Any],
    arguments: Mapping[str, Any],
    seconds: float,
    what: str,
    thread: PinnedThread | None,
) -> Any:
    if inspect.iscoroutinefunction(call):
        return await _limited(call(**arguments), seconds, what, call)
    runs_in = thread or PinnedThread(getattr(call, "__name__", "call"))
    try:
        # Not a partial: Python's message about wrong arguments would not name the function.
        result = await runs_in.call(lambda: call(**arguments), seconds)
    except TimeoutError:
        if not runs_in.hung:
            raise  # the function's own
        raise _late(what, seconds, _line(runs_in.stack(), call)) from None
    finally:
        if thread is None:
            runs_in.end()
    return await _limited(result, seconds, what, call) if inspect.isawaitable(result) else result


async def asked(
    call: Callable[..., Any],
    arguments: Mapping[str, Any],
    seconds: float,
    what: str,
    thread: PinnedThread | None = None,
) -> Any:
    """The same for what no policy calls: an environment's reset and rewards.

    If it fails, the environment or the grader is broken and the attempt must not be trained on.
    Raises `Unavailable` that begins with `what` and names the line. A `BadInput` is raised as it
    is, because our own environments put the next command into it.
    """
    try:
        return await in_thread(call, arguments, seconds, what, thread)
    except (BadInput, Unavailable):
        raise
    except Exception as e:
        raise Unavailable(f"{what}: {type(e).__name__}: {e} ({line_of(e, call)})") from e


def line_of(e: BaseException, call: Callable[..., Any]) -> str:
    """file:line of the user's code that an exception of `call` came through last, not of a library
    that it uses; of `call` itself if it came before any of that, as with wrong arguments. What lies
    beside `call` is the user's even where it is installed."""
    return _line(traceback.walk_tb(e.__traceback__), call)


def _line(frames: Iterable[tuple[FrameType, int]], call: Callable[..., Any]) -> str:
    own = place_of(call)
    home = Path(own).parent if own else None
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    called = [(file, line) for file, line in places if Path(file).parent not in _CALLERS]
    theirs = [
        f"{file}:{line}"
        for file, line in called
        if Path(file).parent == home or not file.startswith(LIBRARIES)
    ]
    return theirs[-1] if theirs else own or "?"


async def _limited(
    awaited: Awaitable[Any], seconds: float, what: str, call: Callable[..., Any]
) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await awaited
    except asyncio.CancelledError as e:
        waits = asyncio.current_task()
        if waits is None or waits.cancelling():
            raise  # the episode is given up
        raise _as_error(e) from None
    except TimeoutError as e:
        if not limit.expired():
            raise
        given_up = e.__cause__ or e.__context__ or e
        raise _late(what, seconds, line_of(given_up, call)) from None


def _late(what: str, seconds: float, line: str) -> Late:
    return Late(
        f"{what}: no answer in {seconds:g} s; it was at {line}. Bound the work there, or give it"
        " more time: call_seconds of its [envs.NAME] in run.toml, which may change during a run"
    )
