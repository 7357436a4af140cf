"""The command `grpo`: every program of this project under one name.

This file joins the groups of commands; each group has its own file in this folder. A command parses
its arguments, calls one function and prints. Imports are inside the commands, because the loop
calls `grpo next` between any two phases. Exit codes are those of `fieldkit.errors`.
"""

from __future__ import annotations

import gc
import shlex
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from fieldkit.cli.streams import ending_with_the_pipe, show_any_text
from fieldkit.errors import BadInput, FieldkitError, Interrupted, foreseen
from scripts.base.invocation import typeable
from scripts.cli import (
    capacity,
    doctor,
    evaluate,
    look,
    models,
    night,
    phases,
    settings,
    sweep,
    task_files,
)
from scripts.cli.as_written import Group, show_as_written
from scripts.cli.env import envs

app = typer.Typer(
    name="grpo",
    cls=Group,
    help="Train a language-model agent with GRPO overnight on one machine, and read the evidence.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_SHOWN = 200  # characters of a typed command that a message repeats
_NEAR = 60  # characters before one that cannot be written


def _print_version(asked: bool) -> None:
    if asked:
        from scripts.base.machine import PROGRAM, versions

        found = versions()
        commit = f" (commit {found['commit'][:12]})" if "commit" in found else ""
        release = found.get(PROGRAM, "from a folder that is not installed")
        print(f"grpo {release}{commit}, Python {found['python']}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


for family, panel in (
    (night, "A night"),
    (sweep, "A night"),
    (look, "Read a run"),
    (capacity, "Read a run"),
    (models, "Model, tasks, settings, adapters"),
    (task_files, "Model, tasks, settings, adapters"),
    (settings, "Model, tasks, settings, adapters"),
    (envs, "Environments"),
    (doctor, "Checks"),
    (evaluate, "Single phases"),
    (phases, "Single phases"),
):
    for added in (*family.app.registered_commands, *family.app.registered_groups):
        added.rich_help_panel = panel
    app.add_typer(family.app)
show_as_written(app)


_ALLOCATIONS = 50_000
"""After so many new objects they are searched for cycles. With Python's 700 that is a seventh of
the time of a page of 1,000 steps, whose records have none."""


def main() -> None:
    """Entry point: run the app and exit with a code of `fieldkit.errors`."""
    gc.set_threshold(_ALLOCATIONS)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    show_any_text()
    try:
        with ending_with_the_pipe():
            app()
    except (FieldkitError, OSError, UnicodeEncodeError) as e:
        if (known := _no_text(e) if isinstance(e, UnicodeEncodeError) else foreseen(e)) is None:
            raise
        print(typeable(f"error: {_with_next_command(known)}"), file=sys.stderr)
        raise SystemExit(known.exit_code) from None


def _no_text(error: UnicodeEncodeError) -> BadInput | None:
    """Half of a surrogate pair, from a typed word or from a file, where it was to be written."""
    text, at = error.object, error.start
    if not "\ud800" <= text[at] <= "\udfff":
        return None
    near = text[max(0, at - _NEAR) : at + 1]
    return BadInput(f"{near!r} ends with half of a character, which no text file can hold")


def _with_next_command(error: FieldkitError) -> str:
    """The message for a person; one that names no command gets the command that was typed."""
    text = str(error)
    if not isinstance(error, BadInput) or "`" in text:
        return text
    typed = shlex.join(["grpo", *sys.argv[1:]])
    if not typed.isprintable() or len(typed) > _SHOWN:
        return f"{text}; `grpo {sys.argv[1][:_SHOWN]} --help` says what it takes"
    return f"{text}; correct it and run `{typed}` again"


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C outside a phase: nothing is half-written, so exit."""
    raise Interrupted("interrupted")
