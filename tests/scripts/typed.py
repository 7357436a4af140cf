"""`grpo` as a person types it: a process of its own, its exit code, and what it printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BAD_INPUT, UNAVAILABLE, SHORTAGE = 2, 4, 5


def python(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module as a program with these words."""
    command = [sys.executable, "-P", "-m", module, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def grpo(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `grpo` with these words."""
    return python("scripts.cli", *map(str, words))
