"""What one part of the loop costs on a run folder: seconds, memory and bytes read.

`python -m tests.scale.probes NAME RUN` does the part once in a process of its own and prints its
figures as JSON. Bytes are counted by the kernel (`rchar`: everything that read() returned), so a
cache of the machine changes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.base.checkout import ROOT
from scripts.run.config import read_config
from scripts.run.folder import RunFolder

MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """Of one process. cpu: seconds of one core, the start of Python and the imports among them;
    part: wall seconds of the part alone; read: bytes that the part read; peak: bytes of memory."""

    cpu: float
    wall: float
    part: float
    read: int
    peak: int


def _next(folder: RunFolder) -> object:
    """What `grpo next` and every turn of the loop do."""
    from scripts.run.state import look

    return look(folder, read_config(folder.config))


def _loop(folder: RunFolder) -> object:
    """One turn of `grpo run` between two phases."""
    from scripts.base.signals import Wish
    from scripts.night.loop import _Loop
    from scripts.night.loop_options import LoopOptions

    config = read_config(folder.config)
    silent = Silent()
    return _Loop(folder, config, LoopOptions(), silent, Wish(print), 0).look()


def _draw(folder: RunFolder, rule: str, resample: int = 0) -> object:
    from scripts.base.signals import Wish
    from scripts.phases.context import Context
    from scripts.phases.rollout import _draw
    from scripts.run.timings import Stopwatch

    config = read_config(folder.config)
    config = replace(config, rollout=replace(config.rollout, draw=rule, resample=resample))
    ctx = Context(folder, config, print, Wish(print), Stopwatch(time.time()))
    return _draw(ctx, folder.finished_steps())


def _verify(folder: RunFolder) -> object:
    """What every phase does first."""
    from scripts.run.verify import put_aside_changes

    put_aside_changes(folder, print)
    return None


def _track(folder: RunFolder) -> object:
    """What a phase with figures does last."""
    from scripts.track.trackers import track

    track(folder, read_config(folder.config), print)
    return None


def _read_bundle(folder: RunFolder) -> object:
    """The newest bundle, one group after another."""
    from fieldkit.codec import bundle_groups

    return sum(len(g.trajectories) for g in bundle_groups(_newest_bundle(folder)))


def _trainer(folder: RunFolder) -> object:
    """What the trainer holds of the newest bundle before it loads a model."""
    from fieldkit.codec import read_bundle
    from trainer.batch import collect
    from trainer.settings import TrainerSettings

    return collect(read_bundle(_newest_bundle(folder)), TrainerSettings())


def _newest_bundle(folder: RunFolder) -> Path:
    return folder.bundle(folder.finished_steps() - 1)


def _converged(folder: RunFolder) -> object:
    from scripts.run.reader import RunReader
    from scripts.run.run_pool import pool_now

    return pool_now(RunReader(folder), read_config(folder.config)).converged


PARTS: dict[str, Callable[[RunFolder], object]] = {
    "next": _next,
    "loop": _loop,
    "draw uniform": lambda folder: _draw(folder, "uniform"),
    "draw resampled": lambda folder: _draw(folder, "uniform", 50),
    "draw frontier": lambda folder: _draw(folder, "frontier"),
    "verify": _verify,
    "track": _track,
    "pool state": _converged,
}
"""What the loop does in every step, by name."""

OF_A_STEP: dict[str, Callable[[RunFolder], object]] = {
    "read the bundle": _read_bundle,
    "trainer's input": _trainer,
}
"""What is done with one bundle, by name."""

COMMANDS = {
    "grpo watch --once": ("watch", "--once"),
    "grpo table": ("table",),
    "grpo report": ("report",),
    "grpo next": ("next",),
}
"""What a person types, by name: the words before RUN's place."""


class Silent:
    """A display that shows nothing."""

    def tell(self, event: object) -> None:
        """Show nothing."""

    def tick(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing to close."""


def part(name: str, run: Path) -> Cost:
    """Do a part of the loop in a process of its own."""
    return _of([sys.executable, "-m", "tests.scale.probes", name, str(run)])


def command(name: str, run: Path) -> Cost:
    """Run a command on the run."""
    first, *rest = COMMANDS[name]
    return _of([sys.executable, "-P", "-m", "scripts.cli", first, str(run), *rest])


_LAUNCH = """
import json, os, sys
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
cpu = used.ru_utime + used.ru_stime
print(json.dumps([os.waitstatus_to_exitcode(status), cpu, used.ru_maxrss]))
"""
"""A small process between this one and the measured one: Linux counts the memory of the process
that starts another as that of the new one too."""


def _of(words: list[str]) -> Cost:
    began = time.perf_counter()
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, *words]
    # A container may forbid it; with the variable every start compiles our modules again.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(launch, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    out, _, told = done.stdout.strip().rpartition("\n")
    code, cpu, peak_kib = json.loads(told)
    if code:
        raise RuntimeError(f"{' '.join(words)}: exit {code}\n{done.stderr[-2000:]}")
    last = out.strip().rpartition("\n")[2]
    found = json.loads(last) if last.startswith('{"read"') else {"read": 0, "part": 0.0}
    return Cost(
        cpu=cpu,
        wall=time.perf_counter() - began,
        part=found["part"],
        read=int(found["read"]),
        peak=peak_kib * 1024,
    )


def read_so_far() -> int:
    """Bytes that this process has read."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def _main(name: str, run: str) -> None:
    folder = RunFolder(Path(run))
    do = (PARTS | OF_A_STEP)[name]
    import tensorboard.compat.proto.event_pb2  # noqa: F401

    import scripts.track.trackers  # noqa: F401

    before, began = read_so_far(), time.perf_counter()
    do(folder)
    took = time.perf_counter() - began
    read = read_so_far() - before
    print(json.dumps({"read": read, "part": took}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
