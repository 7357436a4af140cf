"""What the documents name is there: tests of docs/FAULTS.md, commands, options, linked files."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command

from scripts.base.checkout import ROOT
from scripts.cli.app import app

TESTS = ROOT / "tests"
NAMED_TEST = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")
PAGES = [
    "README.md",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))),
]
TYPED = re.compile(r"(?:^|[`/])grpo ([a-z][^`\n#;)]*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_test_that_the_list_of_faults_names_exists() -> None:
    named = NAMED_TEST.findall(text("docs/FAULTS.md"))
    assert len(named) > 40
    for file, name in named:
        source = (TESTS / file).read_text()
        assert not name or f"def {name}(" in source, f"{file}::{name}"


def test_documents_name_commands_and_link_files() -> None:
    """The two tests below would say nothing of what their patterns do not find."""
    assert sum(len(TYPED.findall(text(name))) for name in PAGES) > 200
    assert sum(len(LINK.findall(text(name))) for name in PAGES) > 40


@pytest.mark.parametrize("name", PAGES)
def test_every_command_that_a_document_names_is_one_and_has_the_options_behind_it(
    name: str,
) -> None:
    for typed in TYPED.findall(text(name).replace("\\\n", " ")):
        command, words = get_command(app), typed.split(" | ")[0].split()
        while words and (below := getattr(command, "commands", None)):
            if words[0] not in below and command.name != "grpo":
                break  # a group, followed by prose
            command = below[words.pop(0)]
        known = {"--help", *(option for p in command.params for option in p.opts)}
        assert set(OPTION.findall(" ".join(words))) <= known, typed


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_and_file_that_a_document_links_to_is_there(name: str) -> None:
    for link in LINK.findall(text(name)):
        assert ((ROOT / name).parent / link).exists(), link
