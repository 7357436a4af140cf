"""What becomes of text that a terminal cannot show, and of output that nobody reads any more.

A terminal may know fewer characters than the tables use, and a command with `| head` behind it
finds its pipe closed early. Neither is a bug, so neither ends in a traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def show_any_text() -> None:
    """From now on, print "?" for a character that stdout or stderr cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
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
            sys.stdout.flush()
    except BrokenPipeError:  # pragma: no cover (the process ends before its lines are counted)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
