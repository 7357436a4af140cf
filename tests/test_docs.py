"""What the documents name is there: tests in docs/FAULTS.md, files and commands in the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from scripts.base.checkout import ROOT
from scripts.cli.app import app

TESTS = ROOT / "tests"
NAMED_TEST = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")
COMMAND = re.compile(r"`grpo ([a-z]+)")
LINK = re.compile(r"\]\(([^)#:]+)\)")


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_test_that_the_list_of_faults_names_exists() -> None:
    named = NAMED_TEST.findall(text("docs/FAULTS.md"))
    assert len(named) > 40
    for file, name in named:
        source = (TESTS / file).read_text()
        assert not name or f"def {name}(" in source, f"{file}::{name}"


@pytest.mark.parametrize(
    "name", ["README.md", "docs/LOG.md", "docs/FAULTS.md", "docs/running.md", "docs/HOUSE.md"]
)
def test_every_command_that_a_document_names_is_one(name: str) -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(COMMAND.findall(text(name))) <= known


def test_every_picture_and_file_that_the_readme_links_to_is_there() -> None:
    links = LINK.findall(text("README.md"))
    assert links
    for link in links:
        assert (ROOT / Path(link)).exists(), link
