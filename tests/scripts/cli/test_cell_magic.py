"""`%grpo` in a notebook: what a command prints comes out of the cell, and a failure stops it."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from scripts.cli.cell_magic import grpo


@pytest.fixture
def shell() -> InteractiveShell:
    made: InteractiveShell = InteractiveShell()  # type: ignore[no-untyped-call]
    made.run_line_magic("load_ext", "scripts.cli.cell_magic")
    return made


def test_a_cell_prints_what_the_command_prints(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "turn_penalty"
    done = shell.run_cell("name = 'turn_penalty'\n%grpo keys {name}")  # type: ignore[no-untyped-call]
    assert done.success
    assert f"\nreward.{name} = " in capsys.readouterr().out


def test_a_command_that_fails_stops_the_cell_and_its_message_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError, match="`grpo keys tempratur` ended with 2"):
        grpo("keys tempratur")
    assert "did you mean 'temperature'?" in capsys.readouterr().out
