"""Runs a child program: streams its lines, returns its exit code, and leaves no orphan.

The loop starts phases, and the train phase starts the trainer, through `run_child`. A child gets
its own process group, so that Ctrl-C at the terminal reaches only the loop. The kernel ends the
child when its parent is gone, and the run's ledger names it while it lives.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fieldkit.process.ledger import Ledger

TICK_SECONDS = 0.5
"""How often `on_tick` is called while a child says nothing."""

GRACE_SECONDS = 15.0
"""How long a child may take to end in good order after SIGTERM."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def run_child(
    command: Sequence[str],
    *,
    ledger: Ledger,
    name: str,
    log: Path,
    on_line: Callable[[str], None],
    on_tick: Callable[[], None] = lambda: None,
    stop_asked: Callable[[], bool] = lambda: False,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Run `command` to its end and return its exit code (128 + n where signal n ended it).

    `ledger` knows it as `name` until then.

    Every line of stdout goes to `on_line`; stderr goes to the end of `log`. When `stop_asked` turns
    true the child gets SIGTERM, and SIGKILL after `GRACE_SECONDS`. Must be called from the main
    thread: the kernel ties the child's life to the thread that started it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    owned = ledger.announce(name, command, log)
    with open(log, "ab") as err:
        child = subprocess.Popen(
            list(command),
            env={**(os.environ if env is None else env), **ledger.marks(owned)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            process_group=0,
            pass_fds=tuple(pass_fds),
            preexec_fn=_die_with(os.getpid()),
        )
    stop_at: float | None = None
    assert child.stdout is not None
    try:
        ledger.started(owned, child.pid)
        for lines in read_lines(child.stdout.fileno(), lambda: child.poll() is not None):
            for line in lines:
                on_line(line)
            on_tick()
            if stop_at is None and stop_asked():
                child.send_signal(signal.SIGTERM)
                stop_at = time.monotonic() + GRACE_SECONDS
            if stop_at is not None and time.monotonic() > stop_at:
                child.kill()
        code = child.wait()
    except BaseException:
        _end(child)
        raise
    finally:
        child.stdout.close()
        ledger.forget(name)
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _die_with(parent: int) -> Callable[[], None]:
    """Have the kernel send SIGTERM to the child when the thread that started it ends."""

    def arm() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it ended between fork and prctl
            os.kill(os.getpid(), signal.SIGTERM)

    return arm


def read_lines(fd: int, ended: Callable[[], bool]) -> Iterator[list[str]]:
    """Lists of whole lines as they come from a pipe or socket, to its end; an empty list at least
    every `TICK_SECONDS`. ended: whether who writes is gone, for a pipe that others keep open."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            chunk: bytes | None = None
            if selector.select(TICK_SECONDS):
                chunk = os.read(fd, 65536)
                if not chunk:
                    break
            elif ended():
                break  # while something it started still holds its stdout
            *lines, rest = (rest + (chunk or b"")).split(b"\n")
            yield [line.decode(errors="replace") for line in lines]
    if rest:
        yield [rest.decode(errors="replace")]
