"""`make test-scale`: what everything beside the model costs, and whether it stays a straight line.

`python -m tests.scale` makes a run of ten thousand tasks and a thousand steps of a thousand
episodes through the real records and writers (`made_run`), measures the parts of the loop and the
commands on it as it grows (`probes`), then varies the pool, the episodes a step, the attempts at a
task, the turns of an episode and what is read after each; it plays episodes in the sandbox on a
scripted policy, and a few steps of a whole night on the scripted engine. It writes
docs/scale-figures.json and docs/scale-figures.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldkit.files.atomic import write_json, write_text
from fieldkit.files.sharded import SHARD_BYTES, stored
from scripts.base.checkout import ROOT
from scripts.base.machine import hardware, versions
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader
from scripts.run.timings import LOOP_VARIABLE, read_timings
from tests.scale import probes
from tests.scale.made_run import MadeRun, Size
from tests.scale.page import page
from tests.scale.probes import Cost

Found = dict[str, Any]

STEPS = (10, 100, 300, 1000)
POOLS = (42, 1000, 10_000)
BATCHES = (8, 64, 250)
GROUPS = (4, 16, 64)
"""Attempts at a task, of 256 episodes a step."""
TURNS = (3, 6, 12)
READ = (14, 140, 560)
"""Ids that are read after each of six turns."""
PLAYED = (32, 128, 512)
"""Episodes that are played at once in the sandbox, each in a process of its own."""
NIGHT_STEPS = 10


def main(
    short: Annotated[bool, typer.Option(help="Hardly any work: whether it works.")] = False,
    out: Annotated[Path, typer.Option(help="Where page and table go.")] = ROOT / "docs",
) -> None:
    """Measure, and write what was found."""
    os.environ[LOOP_VARIABLE] = "1"
    steps, size = ((2, 4), Size(40, 8, 2)) if short else (STEPS, Size())
    began = time.monotonic()
    found: Found = {
        "machine": hardware(),
        "versions": versions(),
        "load": os.getloadavg()[0],
        "shard_bytes": SHARD_BYTES,
    }
    with tempfile.TemporaryDirectory(prefix="grpo-scale-") as scratch:
        root = Path(scratch)
        parts: dict[str, Callable[[Path], object]] = {
            "run": lambda at: _run(at, size, steps),
            "pools": lambda at: _pools(at, POOLS[:1] if short else POOLS),
            "batches": lambda at: _batches(at, BATCHES[:1] if short else BATCHES),
            "groups": lambda at: _groups(at, GROUPS[:1] if short else GROUPS),
            "turns": lambda at: _turns(at, TURNS[:1] if short else TURNS),
            "read": lambda at: _read(at, READ[:1] if short else READ),
            "played": lambda at: [_played(n) for n in (PLAYED[:1] if short else PLAYED)],
            "night": lambda at: _night(at, 2 if short else NIGHT_STEPS),
        }
        for name, measure in parts.items():
            found[name] = measure(root / name)
            # What is measured is kept, whatever comes.
            write_json(out / "scale-figures.json", found)
            shutil.rmtree(root / name, ignore_errors=True)
    found["seconds"] = time.monotonic() - began
    _tell("")
    write_json(out / "scale-figures.json", found)
    write_text(out / "scale-figures.md", page(found))
    print(f"{out / 'scale-figures.md'}: {found['seconds']:.0f} s")


def _tell(text: str) -> None:
    """One line of progress in place of the last."""
    end = "\n" if text and not sys.stderr.isatty() else ""
    start = "" if end else "\r\033[K"
    print(f"{start}{text}", end=end, file=sys.stderr, flush=True)


def _cost(cost: Cost) -> Found:
    return asdict(cost)


def _warm(folder: RunFolder, names: tuple[str, ...]) -> Found:
    """Each part as in the middle of a loop: the second time that it is done."""
    RunReader(folder).store_sums()
    found = {}
    for name in names:
        _tell(f"{folder.finished_steps() - 1} steps: {name}")
        probes.part(name, folder.path)
        found[name] = _cost(probes.part(name, folder.path))
    return found


def _run(root: Path, size: Size, steps: tuple[int, ...]) -> Found:
    """The run in full, and what the loop and the commands take on the way."""
    began = time.monotonic()

    def on_step(n: int) -> None:
        if n % 10 == 0:
            _tell(f"step {n} of {steps[-1]}, {n * size.episodes} episodes")

    made = MadeRun(root, size, on_step)
    made.begin()
    found: Found = {"size": asdict(size), "steps": {}}
    writing = 0.0
    for n in steps:
        start = time.monotonic()
        made.grow(n)
        writing += time.monotonic() - start
        found["steps"][f"{n}"] = _warm(made.folder, tuple(probes.PARTS))
    for name in probes.COMMANDS:
        _tell(f"{steps[-1]} steps: {name}")
        found["steps"][f"{steps[-1]}"][name] = _cost(probes.command(name, made.folder.path))
    whole = _cost(probes.command("grpo report", made.folder.path))
    found["steps"][f"{steps[-1]}"]["grpo report"] = whole
    found["episodes"] = steps[-1] * size.episodes
    found["writing_seconds"] = writing
    found["bytes"] = _bytes(made.folder)
    found["seconds"] = time.monotonic() - began
    return found


def _bytes(folder: RunFolder) -> Found:
    """Bytes by what they are for, and what the bundles are without compression."""
    found: dict[str, int] = {}
    for path in folder.path.rglob("*"):
        if path.is_file():
            place = path.relative_to(folder.path)
            name = place.parts[1] if place.parts[0].startswith("step-") else place.parts[0]
            kind = "bundles" if name.startswith("trajectory_bundle") else name
            found[kind] = found.get(kind, 0) + path.stat().st_size
    one = stored(folder.bundle(1))
    assert one is not None
    from fieldkit.files.sharded import read_records

    lines = sum(len(line.encode()) + 1 for _, line in read_records(folder.bundle(1)))
    return {**found, "lines of one bundle": lines}


def _small(root: Path, size: Size, steps: int = 4) -> MadeRun:
    made = MadeRun(root, size)
    made.begin()
    made.grow(steps)
    return made


def _pools(root: Path, pools: tuple[int, ...]) -> Found:
    names = tuple(probes.PARTS)
    return {f"{n}": _warm(_small(root / f"{n}", Size(n, 8, 4), 40).folder, names) for n in pools}


def _batches(root: Path, batches: tuple[int, ...]) -> Found:
    found: Found = {}
    for n in batches:
        made = _small(root / f"{n}", Size(1000, n, 4))
        found[f"{n * 4}"] = _of_a_step(made)
    return found


def _groups(root: Path, groups: tuple[int, ...]) -> Found:
    return {f"{n}": _of_a_step(_small(root / f"{n}", Size(1000, 256 // n, n))) for n in groups}


def _turns(root: Path, turns: tuple[int, ...]) -> Found:
    return {
        f"{n}": _of_a_step(_small(root / f"{n}", Size(1000, 64, 4, turns=(n, n)))) for n in turns
    }


def _read(root: Path, read: tuple[int, ...]) -> Found:
    return {
        f"{n}": _of_a_step(_small(root / f"{n}", Size(1000, 64, 4, turns=(6, 6), read=n)))
        for n in read
    }


def _of_a_step(made: MadeRun) -> Found:
    bundle = stored(made.folder.bundle(made.steps))
    assert bundle is not None
    files = [bundle] if bundle.is_file() else [*bundle.iterdir()]
    found: Found = {"bytes": sum(f.stat().st_size for f in files)}
    for name in probes.OF_A_STEP:
        found[name] = _cost(probes.part(name, made.folder.path))
    return found


def _played(n: int) -> Found:
    """Play episodes in the sandbox in a process of its own, on a policy that a script plays."""
    _tell(f"{n} episodes in the sandbox")
    words = [sys.executable, "-m", "tests.scale.played", str(n)]
    done = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    found: Found = json.loads(done.stdout)
    return found


def _night(root: Path, steps: int) -> Found:
    """A whole night on the scripted engine and the two-layer model: seconds of its steps."""
    from tests.chaos.night import GRPO_RUN, SITE
    from tests.tiny_policy import make_tiny_policy, write_run

    _tell(f"a night of {steps} steps on the scripted engine")
    root.mkdir(parents=True)
    folder = write_run(root / "night", *make_tiny_policy(root), run={"steps": steps})
    env = {k: v for k, v in os.environ.items() if k != LOOP_VARIABLE} | {"PYTHONPATH": str(SITE)}
    began = time.monotonic()
    words = [*GRPO_RUN, str(folder)]
    subprocess.run(words, cwd=ROOT, env=env, check=True, capture_output=True)
    run = RunFolder(folder)
    walls = [read_timings(run.timings(n), n).training_wall for n in range(1, steps + 1)]
    return {"steps": walls, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    typer.run(main)
