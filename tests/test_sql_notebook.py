"""docs/notebooks/sql.ipynb: its commands and links are there, and its outputs are what it gives.

Its outputs are in git, because it is read more often than run. It needs no engine, and the real
databases of the SQL agent; so it is executed where those are made.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from typer.main import get_command

from scripts.base.checkout import ROOT
from scripts.cli.app import app
from tests.test_notebook import COMMAND, LINK, NAMED, cell, parameters, python

NOTEBOOK = ROOT / "docs" / "notebooks" / "sql.ipynb"
VARIES = "varies"
"""The tag of a cell whose output has times in it."""
TYPED = re.compile(r"^\.venv/bin/grpo ((?:\\\n|.)+)$", re.MULTILINE)


def read() -> NotebookNode:
    notebook: NotebookNode = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def cells(kind: str) -> list[NotebookNode]:
    return [c for c in read().cells if c.cell_type == kind]


def said(node: NotebookNode) -> str:
    """Everything that a cell prints."""
    return "".join(o.text for o in node.outputs if "text" in o)


def commands() -> list[str]:
    """What follows `grpo` in code cells and in the terminal's lines of the text."""
    values: dict[str, Any] = {}
    exec(parameters(read()).source, values)
    own = {"use": "shelf.pkl:Shelf", "RUNS[0]": values["RUNS"][0], "QUESTION": values["QUESTION"]}
    in_cells = [line for c in cells("code") for line in COMMAND.findall(c.source)]
    for name, value in own.items():
        in_cells = [line.replace(f"{{{name}}}", value) for line in in_cells]
    return in_cells + [line for c in cells("markdown") for line in TYPED.findall(c.source)]


def test_every_code_cell_is_python() -> None:
    for node in cells("code"):
        ast.parse(python(node.source))


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one_with_these_options(line: str) -> None:
    command, words = get_command(app), shlex.split(line.replace("\\\n", " "))
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("grpo", words)  # reads the words and does nothing


def test_every_command_file_and_page_that_the_text_names_is_there() -> None:
    text = "\n".join(c.source for c in cells("markdown"))
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(NAMED.findall(text)) <= known
    links = LINK.findall(text)
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).exists(), link


def test_the_notebook_is_committed_with_the_outputs_of_one_run_from_top_to_bottom() -> None:
    counts = [node.execution_count for node in cells("code")]
    assert counts == [*range(1, len(counts) + 1)]
    assert "image/png" in cell(read(), "nights").outputs[-1].data
    for node in cells("code"):
        assert str(ROOT) not in str(node.outputs), "a path of the machine that executed it"


@pytest.mark.envs
@pytest.mark.timeout(600)
def test_every_cell_gives_what_is_committed() -> None:
    executed = read()
    NotebookClient(
        executed,
        timeout=300,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        startup_timeout=300,
        iopub_timeout=60,  # a busy machine may be late with the last line that a cell printed
        coalesce_streams=True,  # and may print in two parts what was one
    ).execute()
    for before in cells("code"):
        after = cell(executed, before.id)
        assert [o.output_type for o in after.outputs] == [o.output_type for o in before.outputs]
        if VARIES not in before.metadata.get("tags", ()):
            assert said(after) == said(before), before.id
    assert "random policy: 32 episodes" in said(cell(executed, "check"))
