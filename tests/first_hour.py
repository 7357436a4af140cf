"""`python -m tests.first_hour`: what a newcomer has after `git clone` and `make run`, with a clock.

Clones the commit of this checkout, runs `make run` there with a model cache of its own (downloaded
packages are reused: a network's speed is not the project's), and writes one line to a file: minutes
of set-up and of the night, steps, held-out figures, and the headline of the page. With `--busy N`
N processes that never rest take part of the processors meanwhile. Each run is a line, so a series
that was cut off is continued by the same command.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts.base.checkout import ROOT

BUSY = "while True: pass"


def main(
    times: Annotated[int, typer.Option(min=1, help="Lines that the file holds at the end.")] = 3,
    busy: Annotated[int, typer.Option(min=0, help="Busy processes beside the night.")] = 0,
    into: Annotated[Path, typer.Option(help="The file; one line a run.")] = Path(
        "first-hour.jsonl"
    ),
    args: Annotated[str, typer.Option(help="More for make, such as STEPS=2.")] = "",
) -> None:
    """Run the first hour until the file holds `times` lines of this commit and load; print them."""
    commit = _output("git", "rev-parse", "--short", "HEAD")
    wanted = {"commit": commit, "busy": busy, "args": args}
    while len(lines := _lines(into, wanted)) < times:
        typer.echo(f"first hour {len(lines) + 1}/{times}, {busy} busy: {commit}", err=True)
        with tempfile.TemporaryDirectory(prefix="first-hour-") as scratch, _busy(busy):
            found = first_hour(Path(scratch), args.split())
        with into.open("a") as f:
            f.write(json.dumps(wanted | found) + "\n")
    for line in lines:
        typer.echo(
            f"{line['minutes']:.1f} min (set-up {line['setup_minutes']:.1f}), "
            f"{line['steps']} steps: "
            f"stops {line['stopped']} of {line['tasks']}, passes {line['passed']} "
            f"(before: {line['passed_before']}) · {line['headline']}"
        )


def first_hour(scratch: Path, args: list[str]) -> dict[str, Any]:
    """`make setup`, then `make run`, in a clone below `scratch`; what they left, and when."""
    clone = scratch / "grpo-loop"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    home = Path.home() / ".cache"
    env = os.environ | {
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(home / "uv")),
    }
    env.pop("VIRTUAL_ENV", None)
    begun = time.monotonic()
    _make(clone, env, "setup")
    ready = time.monotonic()
    _make(clone, env, "run", *args)
    ended = time.monotonic()
    run = clone / "runs" / "tonight"
    evidence = json.loads((run / "evidence.json").read_text())
    arms = {arm["name"]: arm for arm in evidence["arms"]}
    newest, before = arms[evidence["newest"]], arms[evidence["reference"]]
    return {
        "minutes": (ended - begun) / 60,
        "setup_minutes": (ready - begun) / 60,
        "steps": evidence["milestones"]["n_steps"],
        "tasks": newest["n_tasks"],
        "stopped": newest["stopped"],
        "passed": newest["passed"],
        "passed_before": before["passed"],
        "habit": evidence["verdict"]["habit"],
        "work": evidence["verdict"]["work"],
        "headline": evidence["verdict"]["headline"],
        "machine": machine(),
        "load": os.getloadavg()[2],
    }


def _make(clone: Path, env: dict[str, str], *args: str) -> None:
    """Its output goes to the terminal: a night that is watched is believed."""
    subprocess.run(["make", *args], cwd=clone, env=env, check=True, stdin=subprocess.DEVNULL)


@contextmanager
def _busy(n: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _lines(file: Path, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if wanted.items() <= line.items()]


def machine() -> str:
    """Processors and their name."""
    return f"{os.cpu_count()} × {_processor()}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _output(*command: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    if not shutil.which("git"):
        sys.exit("first_hour: git is needed")
    typer.run(main)
