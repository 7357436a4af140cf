"""`fieldkit` as a person types it: its exit codes, and where it prints what."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fieldkit.cli.command_line import COMMANDS, main


def test_every_command_is_listed_and_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_bad_input_ends_with_2_and_one_line_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", "/nowhere", "--base", "/nowhere"])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: /nowhere/adapter_model.safetensors: no such file")
    assert shown.err.count("\n") == 1


def test_asking_for_help_imports_no_torch() -> None:
    program = (
        "import sys; from fieldkit.cli.command_line import main\n"
        "try: main(['delta', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert ended.stdout.endswith("False\n"), ended.stderr
