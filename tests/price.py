"""`make price`: what safety costs on this machine, written to docs/price.md."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.files.atomic import write_text
from scripts.base.checkout import ROOT
from scripts.base.machine import hardware
from tests.fieldkit.files import files_price
from tests.rollout.sandbox import sandbox_price


def main(
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = ROOT / "docs" / "price.md",
    rounds: Annotated[int, typer.Option(min=3, help="Times each is measured.")] = 50,
) -> None:
    """Measure sandbox and files in turn with and without, and write what it was."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        boxes = asyncio.run(sandbox_price.measure(rounds, Path(scratch)))
    files = files_price.measure(ROOT / "runs", rounds)
    head = f"""# What safety costs

Written by `make price` on {machine()}, load average {load:.1f} when it began.
"""
    sections = (sandbox_price.page(boxes, rounds), files_price.page(files, rounds))
    write_text(out, "\n".join((head, *sections)))
    print(out)


def machine() -> str:
    """The machine in words; no name of it."""
    found = hardware()
    kernel = ".".join(platform.release().split(".")[:2])
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True)
    return f"{found['cores']} cores of {found['cpu']}, Linux {kernel}, {bwrap.stdout.strip()}"


if __name__ == "__main__":
    typer.run(main)
