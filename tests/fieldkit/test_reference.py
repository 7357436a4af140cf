"""docs/fieldkit/reference shows every public name, says what it does, and is current."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import griffe
import pytest

from tests.fieldkit.reference import FOLDER, Room, own, pages, rooms

ROOMS = rooms()
PUBLIC = {found.path for room in ROOMS for found in room.names.values()}

WITHOUT_A_PAGE = {
    "fieldkit.records.Trajectory": "what `grpo` stores; a stranger reads it and makes none",
    "fieldkit.registry.Entry": "the type variable of `Registry`",
}
"""Types of ours in public signatures that are in no room, each with the reason."""


def members(room: Room) -> Iterator[griffe.Object]:
    for found in room.names.values():
        yield found
        if isinstance(found, griffe.Class):
            yield from own(found)


def types_in(found: griffe.Object) -> Iterator[str]:
    """The names in a signature's annotations, each with its module."""
    given: list[Any] = [getattr(found, "returns", None), getattr(found, "annotation", None)]
    if isinstance(found, griffe.Class | griffe.Function):
        given += [parameter.annotation for parameter in found.parameters]
    for annotation in given:
        if isinstance(annotation, griffe.Expr):
            parts = annotation.iterate(flat=True)
            yield from (p.canonical_path for p in parts if isinstance(p, griffe.ExprName))


def test_the_pages_are_what_the_docstrings_say() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert there == pages(), "run `make reference`"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.module.path)
def test_every_public_name_has_a_heading_and_a_text(room: Room) -> None:
    package = importlib.import_module(room.module.path)
    public = {name for name in dir(package) if type(getattr(package, name)) is not type(package)}
    page = pages()[f"{room.module.name}.md"]
    assert {line[3:] for line in page.splitlines() if line.startswith("## ")} == public
    silent = [m.path for m in members(room) if not m.docstring and not m.is_attribute]
    silent += [name for name, found in room.names.items() if not found.docstring]
    assert silent == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.module.path)
def test_a_signature_names_no_type_of_ours_that_is_not_public(room: Room) -> None:
    named = {path for member in members(room) for path in types_in(member)}
    ours = {path for path in named if path.startswith("fieldkit.")}
    assert ours <= PUBLIC | WITHOUT_A_PAGE.keys()


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.module.path)
def test_what_raises_says_so(room: Room) -> None:
    for member in members(room):
        if isinstance(member, griffe.Function) and "raise " in member.source.split('"""')[-1]:
            text = member.docstring.value if member.docstring else ""
            assert "raise" in text.lower(), member.path


def test_an_example_is_a_block_of_code() -> None:
    page = pages()["eval.md"]
    assert "```pycon\n>>> pass_at_k_estimator(4, 1, 2)\n0.5\n```" in page
