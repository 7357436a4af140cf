"""What becomes of text that a terminal cannot show, and of output that nobody reads any more.

A terminal may know fewer characters than the tables use, a command with `| head` behind it finds
its pipe closed early, one with `>&-` has no output at all, and the disk behind `> FILE` may be
full. None of these is a bug, so none ends in a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def show_any_text() -> None:
    """From now on, print "?" for a character that stdout or stderr cannot encode, and nothing to
    one that is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            devnull = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it stays open)
            setattr(sys, name, devnull)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def ending_with_the_pipe() -> Iterator[None]:
    """In this block, a closed pipe behind stdout ends the process by SIGPIPE, as it does other Unix
    tools. Python itself ignores the signal: a write to a dead server must not end a program."""
    try:
        try:
            yield
        except SystemExit as e:
            if isinstance(e.__context__, BrokenPipeError):  # Typer makes exit code 1 of it
                raise e.__context__ from None  # pragma: no cover (it ends below)
            raise
        finally:
            _flush()
    except BrokenPipeError:  # pragma: no cover (the process ends before its lines are counted)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError as e:
        if e.errno != errno.EPIPE:  # Python would try again at its exit, and end with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
