"""Runs child programs: streams their lines, returns their exit codes, and leaves no orphan.

The loop starts phases through `run_children`, also two that run beside each other; the train phase
starts the trainer through `run_child`. A child gets its own process group, so that Ctrl-C at
the terminal reaches only the loop. The kernel ends the child when its parent is gone, and the run's
ledger names it while it lives.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import Unavailable
from fieldkit.process.ledger import Ledger
from fieldkit.process.parent import ended_with

TICK_SECONDS = 0.5
"""How often `on_tick` is called while no child says anything."""

GRACE_SECONDS = 15.0
"""How long a child may take to end in good order after SIGTERM."""

_KILL_SECONDS = 10.0
"""How long it may take after SIGKILL; one that hangs in a driver may never end."""


def _goes_on() -> bool:
    return False


@dataclass(frozen=True)
class Program:
    """A child program.

    name: its entry in the ledger. on_line: gets every line of its stdout. log: its stderr goes to
    the end of this file. stop_asked: when it turns true the child gets SIGTERM, and SIGKILL after
    `GRACE_SECONDS`. on_end: gets its exit code, 128 + n where signal n ended it.
    """

    command: Sequence[str]
    name: str
    log: Path
    on_line: Callable[[str], None]
    stop_asked: Callable[[], bool] = _goes_on
    on_end: Callable[[int], None] = lambda code: None


def run_child(
    command: Sequence[str],
    *,
    ledger: Ledger,
    name: str,
    log: Path,
    on_line: Callable[[str], None],
    stop_asked: Callable[[], bool] = _goes_on,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run one `Program` to its end and return its exit code; the rest as in `run_children`."""
    program = Program(command, name, log, on_line, stop_asked)
    (code,) = run_children([program], ledger=ledger, env=env)
    return code


def run_children(
    programs: Sequence[Program],
    *,
    ledger: Ledger,
    on_tick: Callable[[], None] = lambda: None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> list[int]:
    """Run the programs at the same time, to the end of all; their exit codes, in their order.

    One that fails does not end the others: `on_end` and `stop_asked` of the programs decide that.
    Must be called from the main thread: the kernel ties a child's life to the thread that started
    it.
    """
    children: list[_Child] = []
    try:
        for program in programs:
            children.append(child := _Child(program, ledger, env, pass_fds))
            child.enter()
        _stream(children, on_tick)
        return [child.code for child in children]
    except BaseException:
        for child in children:
            child.process.terminate()
        for child in children:
            child.end_by(time.monotonic() + GRACE_SECONDS)
        raise
    finally:
        for child in children:
            child.forget()


class _Child:
    """One program while it runs."""

    def __init__(
        self,
        program: Program,
        ledger: Ledger,
        env: Mapping[str, str] | None,
        pass_fds: Sequence[int],
    ) -> None:
        self.program, self._ledger = program, ledger
        self.code = 0
        self._stop_at: float | None = None
        self._lines = _Lines()
        program.log.parent.mkdir(parents=True, exist_ok=True)
        self._owned = ledger.announce(program.name, program.command, program.log)
        with open(program.log, "ab") as err:
            self.process = subprocess.Popen(
                list(program.command),
                env={**(os.environ if env is None else env), **ledger.marks(self._owned)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                process_group=0,
                pass_fds=tuple(pass_fds),
                preexec_fn=ended_with(os.getpid()),
            )

    def enter(self) -> None:
        """Write its pid into the ledger."""
        self._ledger.started(self._owned, self.process.pid)

    def fileno(self) -> int:
        """Its stdout, to wait for."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def read(self) -> bool:
        """Pass on the lines that have come; False at the end of its stdout."""
        chunk = os.read(self.fileno(), _CHUNK_BYTES)
        for line in self._lines.take(chunk):
            self.program.on_line(line)
        return bool(chunk)

    def look(self) -> None:
        """Stop it where that is asked. Raises `Unavailable` where it does not end by that."""
        if self._stop_at is None and self.program.stop_asked():
            self.process.send_signal(signal.SIGTERM)
            self._stop_at = time.monotonic() + GRACE_SECONDS
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            self.process.kill()
            if not self.ends_within(_KILL_SECONDS):
                pid = self.process.pid
                raise Unavailable(
                    f"{self.program.name}: process {pid} did not end after SIGKILL (stuck in the"
                    f" kernel?); look at it with `ps -o pid,stat,wchan,cmd -p {pid}`"
                )

    def finish(self) -> None:
        """Pass on a last line without its newline, wait for the end, and tell its exit code."""
        for line in self._lines.rest():
            self.program.on_line(line)
        code = self.process.wait()
        self.code = code if code >= 0 else 128 - code
        self.program.on_end(self.code)

    def ends_within(self, seconds: float) -> bool:
        """Wait so long for its end; whether it has come."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end_by(self, deadline: float) -> None:
        """See it end, which it was told to, by this moment of the monotonic clock, or soon after a
        SIGKILL: one that does not end by that is not waited for."""
        if not self.ends_within(max(0.0, deadline - time.monotonic())):
            self.process.kill()
            self.ends_within(_KILL_SECONDS)

    def forget(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        with contextlib.suppress(OSError):  # an entry of what has ended does no harm
            self._ledger.forget(self._owned)


def _stream(children: Sequence[_Child], on_tick: Callable[[], None]) -> None:
    """Hear the children until all have ended."""
    left = list(children)
    with selectors.DefaultSelector() as selector:
        for child in left:
            selector.register(child, selectors.EVENT_READ)
        while left:
            # Asked before their output is: what a child wrote before its end is read.
            over = [child for child in left if child.is_over]
            heard = [key.fileobj for key, _ in selector.select(TICK_SECONDS)]
            for child in tuple(left):
                # Something that it started may hold the stdout of one that is over, and one that
                # has closed its own may go on.
                if child.read() if child in heard else child not in over:
                    continue
                if child in selector.get_map():
                    selector.unregister(child)
                if child.ends_within(TICK_SECONDS):
                    left.remove(child)
                    child.finish()
            on_tick()
            for child in left:
                child.look()


_CHUNK_BYTES = 65536


class _Lines:
    """Bytes as they come, as whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, chunk: bytes) -> list[str]:
        """The lines that are whole now."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def rest(self) -> list[str]:
        """A last line that has no newline, if there is one."""
        return [self._rest.decode(errors="replace")] if self._rest else []


def read_lines(fd: int) -> Iterator[list[str]]:
    """Lists of whole lines as they come from a socket, to its end; an empty list at least every
    `TICK_SECONDS`."""
    lines = _Lines()
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            chunk = b""
            if selector.select(TICK_SECONDS):
                chunk = os.read(fd, _CHUNK_BYTES)
                if not chunk:
                    break
            yield lines.take(chunk)
    if rest := lines.rest():
        yield rest
