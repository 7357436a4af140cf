"""`python -m tests.scale.played N`: N episodes through the real rollout, all at once.

Player, sandbox, grader, rewards, groups, partial file and bundle are those of a night. The policy's
replies come from a script, so what is measured is everything but the model.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from fieldkit.files.sharded import stored
from fieldkit.records import Task
from rollout.bundle import roll_out
from tests.rollout.scripted import bash, player, write_task

K = 4


def _script(conversation: str, turn: int, seed: int) -> str:
    """Solves the task in the second turn and stops in the third."""
    name = conversation.partition("done into ")[2].partition(".txt")[0]
    return (bash("ls"), bash(f"echo done > {name}.txt"), "TASK_COMPLETE")[min(turn, 2)]


def _main(n: int) -> None:
    tasks: list[Task] = [write_task(f"task{i}") for i in range(n // K)]
    with tempfile.TemporaryDirectory(prefix="grpo-scale-") as scratch:
        folder = Path(scratch)
        bundle = folder / "trajectory_bundle.jsonl"
        one = player(folder, _script, clock=time.monotonic)
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        groups = asyncio.run(
            roll_out(
                1,
                tasks,
                player=one,
                run_seed=0,
                group_size=K,
                partial=folder / "partial.jsonl",
                bundle=bundle,
            )
        )
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_SELF)
        assert all(t.grade.passed for g in groups for t in g.trajectories)
        assert stored(bundle) is not None
    found = {
        "episodes": n,
        "seconds": seconds,
        "cpu": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "peak": used.ru_maxrss * 1024,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
