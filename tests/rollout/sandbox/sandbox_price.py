"""What the sandbox costs: the same commands in bubblewrap and without any sandbox, in turn.

A part of `make price`. The two kinds alternate command by command, so that what else the machine
does meets both alike, and only medians and their ratio are told. Needs no GPU and no model.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rollout.sandbox.base import Sandbox, SandboxSettings, make_sandbox

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


def page(seen: dict[str, Pair], rounds: int) -> str:
    """The section of the page, as Markdown."""
    rows = "\n".join(f"| {name} | {pair.row} |" for name, pair in seen.items())
    texts = "\n".join(f"| {n} | `{c.replace('|', BAR)}` |" for n, c in COMMANDS.items())
    extra = 1e3 * (median(seen["nothing"].boxed) - median(seen["nothing"].plain))
    return f"""## The sandbox

A command that does nothing takes {extra:.0f} ms longer in the sandbox than without: that is the
making and the removal of its box.

| | sandbox, ms | none, ms | more, ms | ratio |
| :-- | --: | --: | --: | --: |
{rows}

Medians of {rounds}, the two kinds in turn, command by command. "sandbox" is the default,
bubblewrap; "none" is `--sandbox none`: limits, but no isolation.

| `notes` is 20 files of 40 lines | what was run |
| :-- | :-- |
{texts}

Which attempts to get out, or to take more than a share, are tried: `tests/rollout/test_escape.py`,
by `make test-sandbox`.
"""
