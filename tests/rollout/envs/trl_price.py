"""What a turn costs in an environment of this process, beyond what its class does.

    python -m tests.rollout.envs.trl_price

A class as TRL's environment_factory takes it (counter.py), by the world that plays it in a run: a
reply is read, the tool runs in its instance's thread, its answer is told. Beside it the same calls
of the bare class.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from fieldkit.records import Task
from rollout.envs.base import Reply, Site
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.registry import make_world
from rollout.sandbox.command import SandboxSettings
from tests.rollout.envs.counter import Counter

ROUNDS = 5
AT_ONCE = {1: 1000, 64: 100, 256: 50}
"""Episodes at once, and turns of each."""

TASK = Task("count", "counter", "Count.", {"target": 10**9})


def bare(turns: int) -> float:
    """Milliseconds a turn of the class by itself."""
    counter = Counter()
    counter.reset(10**9)
    began = time.perf_counter()
    for _ in range(turns):
        counter.add(1)
    return (time.perf_counter() - began) * 1000 / turns


async def episode(site: Site, turns: int) -> None:
    world = make_world(TASK, site)
    await world.reset(TASK, 0)
    for _ in range(turns):
        await world.step(Reply("add: 1"))
    await world.close()


async def at_once(site: Site, n: int, turns: int) -> float:
    """Milliseconds of this process a turn, `n` episodes together."""
    began = time.perf_counter()
    await asyncio.gather(*(episode(site, turns) for _ in range(n)))
    return (time.perf_counter() - began) * 1000 / (n * turns)


async def main() -> None:
    settings = EnvSettings(use="counter.py:Counter", passes="reward >= 1")
    register_environments({"counter": settings}, Path(__file__).parent)
    site = Site(SandboxSettings(), Path(tempfile.mkdtemp()))
    for n, turns in AT_ONCE.items():
        await at_once(site, n, 5)  # instances and threads are made once and reused
        spent = statistics.median([await at_once(site, n, turns) for _ in range(ROUNDS)])
        print(f"{n} at once: {spent:.3f} ms a turn, of which the class itself {bare(turns):.4f}")


if __name__ == "__main__":
    asyncio.run(main())
