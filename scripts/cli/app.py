"""The command `grpo`: every program of the house under one name.

This file only puts the families of commands together; each has its own file here. Commands are
thin: they read what was typed, call one function and print. Their imports are inside them, because
`grpo next` is asked between any two phases. Exit codes are those of `fieldkit.errors`.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

import typer

from fieldkit.errors import FieldkitError, Interrupted, foreseen
from scripts.cli import doctor, look, make, night, phases

app = typer.Typer(
    name="grpo",
    help="One box, one night: GRPO on a command-line agent, and honest evidence in the morning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for family in (night, phases, doctor, look, make):
    app.add_typer(family.app)


def main() -> None:
    """Entry point: run the app and end with the exit code of the contract."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except (FieldkitError, OSError) as e:
        if (known := foreseen(e)) is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        raise SystemExit(known.exit_code) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C where no phase listens for it: nothing is half-written, so simply end."""
    raise Interrupted("interrupted")
