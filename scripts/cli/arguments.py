"""Arguments and options that several `grpo` commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Run = Annotated[str, typer.Argument(metavar="RUN", help="A name under runs/, or a path.")]
Sandbox = Annotated[
    Literal["bwrap", "none"],
    typer.Option(
        help="none: the policy's commands run as you, unprotected. run.toml cannot set it: give it"
        " on every command that continues such a run."
    ),
]
