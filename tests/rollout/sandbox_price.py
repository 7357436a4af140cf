"""What the sandbox costs: the same commands in bubblewrap and without any sandbox, in turn.

Writes docs/sandbox.md. The two kinds alternate command by command, so that what else the machine
does meets both alike, and only medians and their ratio are told. Needs no GPU and no model.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from fieldkit.files import write_text
from rollout.sandbox import Sandbox, SandboxSettings, make_sandbox
from scripts.run_folder import ROOT

FILES = {f"notes/{n:02}.txt": b"a line of text\n" * 40 for n in range(20)}
"""A workspace as tasks have them."""

COMMANDS = {
    "nothing": "true",
    "one program": "wc -l notes/00.txt",
    "a pipeline": "cat notes/*.txt | sort | uniq -c | wc -l",
    "twenty programs": "for f in notes/*.txt; do sed s/line/word/ $f > out.txt; done",
    "some arithmetic": "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done",
}
"""What is measured, from what is all start to what is nearly none."""

BAR = "\\|"  # in a cell of a Markdown table

START = "an episode's workspace: made and removed"

Timed = Callable[[], Awaitable[float]]


@dataclass
class Pair:
    """Seconds of the same thing in each kind."""

    boxed: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    @property
    def row(self) -> str:
        boxed, plain = 1e3 * median(self.boxed), 1e3 * median(self.plain)
        return f"{boxed:.1f} | {plain:.1f} | {boxed - plain:+.1f} | {boxed / plain:.2f}"


async def measure(rounds: int, scratch: Path) -> dict[str, Pair]:
    """Every command and the start of an episode, `rounds` times in each kind, in turn."""
    seen = {name: Pair() for name in [*COMMANDS, START]}
    boxed = make_sandbox(SandboxSettings(command_seconds=60), scratch)
    plain = make_sandbox(SandboxSettings(command_seconds=60, kind="none"), scratch)
    try:
        for sandbox in (boxed, plain):
            await sandbox.open(FILES)
        for done in range(rounds + 1):
            for name, pair in seen.items():
                kinds = [(boxed, pair.boxed), (plain, pair.plain)]
                for sandbox, seconds in kinds if done % 2 else reversed(kinds):
                    took = await (
                        start(sandbox) if name == START else command(sandbox, COMMANDS[name])
                    )
                    if done:  # the first round only brings the programs into memory
                        seconds.append(took)
    finally:
        await boxed.close()
        await plain.close()
    return seen


async def command(sandbox: Sandbox, line: str) -> float:
    """Seconds from asking until the result. Raises `RuntimeError` where the command failed."""
    began = time.perf_counter()
    result = await sandbox.run(line)
    took = time.perf_counter() - began
    if result.exit_code != 0:
        raise RuntimeError(f"{line!r} ended with {result.exit_code}: {result.output}")
    return took


async def start(sandbox: Sandbox) -> float:
    """Seconds to remove a workspace and make the next."""
    began = time.perf_counter()
    await sandbox.open(FILES)
    return time.perf_counter() - began


def page(seen: dict[str, Pair], rounds: int, load: float) -> str:
    rows = "\n".join(f"| {name} | {pair.row} |" for name, pair in seen.items())
    texts = "\n".join(f"| {n} | `{c.replace('|', BAR)}` |" for n, c in COMMANDS.items())
    extra = 1e3 * (median(seen["nothing"].boxed) - median(seen["nothing"].plain))
    return f"""# What the sandbox costs

A command that does nothing takes {extra:.0f} ms longer in the sandbox than without: that is the
making and the removal of its box.

| | sandbox, ms | none, ms | more, ms | ratio |
|---|---|---|---|---|
{rows}

Medians of {rounds}, the two kinds in turn, command by command. "sandbox" is the default,
bubblewrap; "none" is `kind = "none"` under `[sandbox]`: limits, but no isolation.

| `notes` is 20 files of 40 lines | what was run |
|---|---|
{texts}

Measured by `python -m tests.rollout.sandbox_price --rounds {rounds} --out docs/sandbox.md` on
{machine()},
with a load average of {load:.1f} when it began. Which attempts to get out, or to take more than a
share, are tried: `tests/rollout/test_escape.py`, by `make test-sandbox`.
"""


def machine() -> str:
    """The machine in words; no name of it."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    names = [value.strip() for key, _, value in lines if key.strip() == "model name"]
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True)
    cpu = names[0] if names else platform.machine()
    return f"{os.cpu_count()} x {cpu}, Linux {platform.release()}, {bwrap.stdout.strip()}"


def main(
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = ROOT / "docs" / "sandbox.md",
    rounds: Annotated[int, typer.Option(min=3, help="Times each is measured.")] = 50,
) -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        seen = asyncio.run(measure(rounds, Path(scratch)))
    write_text(out, page(seen, rounds, load))
    typer.echo(f"{out} is written")


if __name__ == "__main__":
    typer.run(main)
