"""Scratch environments with one package each, which borrow everything else from this one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

UV = Path(sys.executable).with_name("uv")


def environment(folder: Path, *packages: str, borrow: bool = True) -> Path:
    """Make a virtual environment with these packages from the index; return its Python.

    borrow: what it lacks (torch, pytest) comes from this environment, behind its own packages.
    """
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([UV, "pip", "install", "-q", "--python", python, *packages], check=True)
    if borrow:
        (site,) = (folder / "lib").glob("*/site-packages")
        (site / "zz_borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
