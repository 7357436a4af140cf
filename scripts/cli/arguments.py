"""What several commands of `grpo` take on their command line."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Run = Annotated[str, typer.Argument(metavar="RUN", help="A name below runs/, or a path.")]
Sandbox = Annotated[
    Literal["bwrap", "none"],
    typer.Option(
        help="none: the policy's commands run as you, unprotected. No file can say it, so every"
        " command that goes on with such a night has to."
    ),
]
