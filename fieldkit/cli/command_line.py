"""The command `fieldkit`: the library's checks for a person at a terminal.

A command parses its arguments, calls the library and prints: figures on stdout, errors on stderr.
Exit codes are those of `fieldkit.errors`. A new command is a function and one line in `COMMANDS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

import fieldkit
from fieldkit.cli.adapters import check, delta
from fieldkit.cli.ancestors import lineage
from fieldkit.cli.evaluations import compare, passk
from fieldkit.cli.procs import procs
from fieldkit.cli.streams import ending_with_the_pipe, show_any_text
from fieldkit.errors import FieldkitError, foreseen

COMMANDS: dict[str, Callable[..., None]] = {
    "delta": delta,
    "check": check,
    "compare": compare,
    "passk": passk,
    "lineage": lineage,
    "procs": procs,
}


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fieldkit {fieldkit.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Check adapters, compare evaluations, and see the processes that you own."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run a command and exit with its code."""
    app = typer.Typer(
        name="fieldkit",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    show_any_text()
    try:
        with ending_with_the_pipe():
            app(None if arguments is None else list(arguments))
    except (FieldkitError, OSError) as e:
        if (known := foreseen(e)) is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        raise SystemExit(known.exit_code) from None
