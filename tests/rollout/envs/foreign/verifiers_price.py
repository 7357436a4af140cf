"""What a turn costs in an environment of verifiers, beyond what a policy and a tool take.

    python -m tests.rollout.envs.foreign.verifiers_price

The tool environment of verifiers_examples, by the world that plays it in a run: a reply goes to the
other process, verifiers' own loop runs the tool, and its answer comes back.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from fieldkit.records import Task
from rollout.envs.base import Environment, Reply, Site
from rollout.envs.env_settings import EnvSettings
from rollout.envs.foreign.verifiers_world import verifiers_environment
from rollout.sandbox.command import SandboxSettings
from scripts.environments.foreign_venv import add_environment

EXAMPLES = Path(__file__).parents[1] / "verifiers_examples" / "everything.py"
ROUNDS = 5
AT_ONCE = {1: 50, 64: 3, 256: 3}
"""Episodes at once, and episodes that each of them plays one after the other."""

TURNS = 3
"""Calls of an episode; verifiers ends this one after four replies."""

TASK = Task("sum", "theirs", "", {"prompt": [{"role": "user", "content": "?"}], "answer": "2"})


async def episodes(environment: Environment, site: Site, n: int) -> float:
    """Seconds that the turns of `n` episodes took, one after the other."""
    spent = 0.0
    world = environment.make(site)
    for _ in range(n):
        await world.reset(TASK, 0)
        began = time.perf_counter()
        for _ in range(TURNS):
            await world.step(Reply('add {"a": 1, "b": 1}'))
        spent += time.perf_counter() - began
    await world.close()
    return spent


async def main() -> None:
    theirs = EnvSettings(
        str(EXAMPLES),
        "right == 1",
        style="verifiers",
        python=str(add_environment(str(EXAMPLES)).python),
        config={"kind": "tools"},
    )
    environment = verifiers_environment("theirs", theirs, Path("/"))
    site = Site(SandboxSettings(), Path(tempfile.mkdtemp()))
    await episodes(environment, site, 2)  # starts the program
    for n, times in AT_ONCE.items():
        rounds = []
        for _ in range(ROUNDS):
            spent = await asyncio.gather(*(episodes(environment, site, times) for _ in range(n)))
            rounds.append(statistics.fmean(spent) * 1000 / (times * TURNS))
        print(f"{n} at once: an episode's turn {statistics.median(rounds):.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
