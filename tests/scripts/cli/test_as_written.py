"""Every help text stands on the screen as it is written, words in square brackets too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape, render
from typer.testing import CliRunner

from scripts.cli.app import app
from scripts.cli.as_written import Group, escaped, show_as_written

FRAME = re.compile(r"[\s│╭╮╰╯─]+")
"""What lays a help out; a text has the same words on a screen of any width."""


def below(found: typer.Typer, *words: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every command, by the words that a person types."""
    for command in found.registered_commands:
        assert command.callback is not None
        yield " ".join([*words, command.name or command.callback.__name__]), command.callback
    for group in found.registered_groups:
        assert group.typer_instance is not None
        name = group.name if isinstance(group.name, str) else None
        yield from below(group.typer_instance, *words, *([name] if name else []))


def texts(callback: Callable[..., Any]) -> list[str]:
    """What the source says of a command and of its parameters."""
    hints = get_type_hints(callback, include_extras=True).values()
    declared = [one for hint in hints for one in getattr(hint, "__metadata__", ())]
    said = [callback.__doc__, *(one.help for one in declared if not one.hidden)]
    return [text for text in said if text]


def shown(of: typer.Typer, *words: str) -> str:
    """A help without its layout, on a screen on which no line is too long."""
    done = CliRunner().invoke(of, [*words, "--help"], env={"COLUMNS": "2000"})
    assert done.exit_code == 0, done.output
    return FRAME.sub(" ", done.output)


@pytest.mark.parametrize("words", sorted(dict(below(app))))
def test_every_text_of_a_command_stands_in_its_help(words: str) -> None:
    said = shown(app, *words.split())
    for text in texts(dict(below(app))[words]):
        assert FRAME.sub(" ", text).strip() in said, text


def test_words_in_brackets_stand_in_the_help_of_commands_groups_and_parameters() -> None:
    inner = typer.Typer(help="Group of [envs.inner].")

    @inner.command()
    def one(option: Annotated[str, typer.Option(help="Option of [model].")] = "") -> None:
        """First of [envs.NAME].

        Then [/] and \\[run] and [envs."a b"].
        """

    @inner.command()
    def other() -> None:
        """Second of [data]."""

    outer = typer.Typer(cls=Group, help="Top of [engine].", rich_markup_mode="rich")
    outer.add_typer(inner, name="inner")
    show_as_written(outer)
    assert "Top of [engine]." in shown(outer)
    assert "Group of [envs.inner]." in shown(outer)
    group = shown(outer, "inner")
    for said in ("Group of [envs.inner].", "First of [envs.NAME].", "Second of [data]."):
        assert said in group
    help_ = shown(outer, "inner", "one")
    for said in ("Option of [model].", "Then [/] and \\[run]", 'and [envs."a b"].'):
        assert said in help_


@given(st.text(alphabet='ab[]/\\@#=". ', max_size=12))
def test_a_text_is_escaped_as_rich_escapes_it(text: str) -> None:
    assert escaped(text) == escape(text)
    assert render(escaped("[envs.NAME]") + "!").plain == "[envs.NAME]!"


def test_a_paragraph_is_broken_where_the_screen_ends_and_nowhere_else() -> None:
    described = typer.Typer(cls=Group)

    @described.command()
    def one() -> None:
        """Do something.

        A line of the source that is longer than the screen of somebody who
        has a small one.
        """

    show_as_written(described)
    done = CliRunner().invoke(described, ["--help"], env={"COLUMNS": "60"})
    lines = [line.strip() for line in done.output.splitlines()]
    assert "A line of the source that is longer than the screen of" in lines
    assert "somebody who has a small one." in lines
