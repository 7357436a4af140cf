"""Rich renderables as plain text, for logs and for output that is not a terminal."""

from __future__ import annotations

from typing import Any

WIDTH = 160
"""Columns of a text page, wide enough for every table of the loop."""


def as_text(renderable: Any, width: int = WIDTH) -> str:
    """The terminal's text, without colours and trailing spaces."""
    from rich.console import Console

    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")
