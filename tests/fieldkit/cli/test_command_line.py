"""`fieldkit` as a person types it: its exit codes, and where it prints what."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fieldkit
from fieldkit.cli.command_line import COMMANDS, main

VERSION = "from fieldkit.cli.command_line import main; main(['--version'])"


def test_every_command_is_listed_and_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["-h"], *([name, "--help"] for name in COMMANDS)):
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


def test_the_version_is_the_packages() -> None:
    ended = subprocess.run([sys.executable, "-P", "-c", VERSION], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"fieldkit {fieldkit.__version__}\n")


def test_a_fault_of_the_system_that_no_message_mends_is_not_hidden() -> None:
    with pytest.raises(OSError, match="Input/output error"):
        main(["passk", "/proc/self/mem"])
