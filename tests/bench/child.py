"""A program of the checkout, run to its end in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from scripts.base.checkout import ROOT


def run(module: str, *words: str, env: Mapping[str, str] = os.environ) -> str:
    """What `python -m module …` prints. Its errors go where this process's go; raises where it
    fails. The phases' environment is ours, so that a trainer which we begin is theirs."""
    found = {"PYTHONPATH": str(ROOT)} if module.startswith("tests.") else {}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        cwd=ROOT,
        env={**env, **found},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ended.stdout
