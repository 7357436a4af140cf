"""Shows help texts as they are written: words in square brackets, and paragraphs as paragraphs.

Typer reads help texts as Rich markup, which takes `[envs.NAME]` or `[model]` for a style and drops
it, on the screen and in shell completions. Our texts have no markup, so this module escapes all of
them when a command is built.

Every call of `grpo` builds all commands, and Rich takes 30 ms to import, so its `escape` is
repeated here.
"""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_MARKUP = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")
"""What Rich takes for markup, with the backslashes before it."""


class _Escaped:
    """Escapes a command's texts and those of its parameters when it is built."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for described in (self, *(given.get("params") or ())):
            for text in ("help", "short_help", "epilog"):
                if said := getattr(described, text, None):
                    setattr(described, text, escaped(reflowed(said)))


def reflowed(text: str) -> str:
    """The text with each paragraph on one line. The lines of a docstring are longer than those of a
    narrow terminal, and Typer would break each one by itself."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def escaped(text: str) -> str:
    """The markup that Rich shows as this text, as from `rich.markup.escape`."""
    text = _MARKUP.sub(r"\1\1\\\2", text)
    return text + "\\" if text.endswith("\\") and not text.endswith("\\\\") else text


class Command(_Escaped, TyperCommand):
    """A command whose texts are shown as written."""


class Group(_Escaped, TyperGroup):
    """A group of commands whose texts are shown as written."""


def show_as_written(app: typer.Typer) -> None:
    """Make every command below `app` show its texts as written. `app` itself is made with
    `cls=Group`."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            show_as_written(group.typer_instance)
