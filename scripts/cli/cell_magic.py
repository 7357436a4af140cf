"""`%load_ext scripts.cli.cell_magic`: the command `grpo` in the cells of a notebook.

`%grpo run tonight` in a cell does the same as `grpo run tonight` in a terminal in the checkout's
folder. A command that fails stops the notebook. Output appears while the command works.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from scripts.base.checkout import ROOT

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

PAGE = {"COLUMNS": "130", "FORCE_COLOR": ""}
"""Wide enough for two transcripts, and without a spinner, which a notebook cannot animate."""


def grpo(line: str) -> None:
    """Run `grpo LINE` and print its output. Raises `RuntimeError` if it fails."""
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "scripts.cli", *shlex.split(line)],
        cwd=ROOT,
        env={**os.environ, **PAGE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with command:
        assert command.stdout is not None, "it was asked for a pipe"
        try:
            for said in command.stdout:
                print(said, end="")
        except KeyboardInterrupt:  # the command gets the signal too, and shuts down by itself
            print(command.stdout.read(), end="")
    if command.returncode:
        raise RuntimeError(f"`grpo {line}` ended with {command.returncode}; its last line says why")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magic; called by `%load_ext`."""
    # The decorators hide from the type checker that this is a method.
    shell.register_magic_function(grpo, "line")  # type: ignore[arg-type]
