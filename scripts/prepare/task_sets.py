"""`grpo synth`: write the task files, after every task has been checked in the sandbox.

Checked means: the oracle's commands, run in the same environment as every rollout, satisfy every
assertion; and doing nothing passes no task. A file is written only when all of its tasks pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.files.atomic import write_text
from fieldkit.records import Task, encode
from rollout.envs.shell import make_environment
from rollout.sandbox.base import SandboxSettings
from rollout.settings import EpisodeSettings
from rollout.synth.splits import split_tasks
from rollout.yardsticks import play_nothing, play_oracle
from scripts.base.display import Progress

NOTHING_LIMIT = 0.25
"""At most this share of all assertions may hold when nothing is done."""
IN_FLIGHT = 8


@dataclass(frozen=True)
class Checked:
    """What doing nothing and the oracle reach on one task."""

    task: Task
    nothing_passed: int
    total: int


async def check_task(task: Task, scratch: Path) -> Checked:
    """Play nothing, then the oracle. Raises `BadInput` naming the task when either is wrong."""
    environment = make_environment(task.env, SandboxSettings(), scratch)
    settings = EpisodeSettings()
    try:
        nothing = await play_nothing(task, environment=environment, settings=settings, reward=_rate)
        oracle = await play_oracle(task, environment=environment, settings=settings, reward=_rate)
    finally:
        await environment.close()
    if nothing.grade.passed:
        raise BadInput(f"{task.task_id}: doing nothing passes it")
    failed = [r for r in oracle.grade.results if not r.passed]
    if failed:
        why = "; ".join(f"{r.kind} {r.path}: {r.detail}" for r in failed)
        raise BadInput(f"{task.task_id}: its oracle does not pass ({why})")
    return Checked(task, nothing.grade.n_passed, nothing.grade.n_total)


def _rate(grade: Grade, n_turns: int) -> float:
    return grade.rate


def check_tasks(
    tasks: Sequence[Task], scratch: Path, what: str, progress: Progress
) -> list[Checked]:
    """`check_task` for all, several at once. Raises `BadInput` for the first that is wrong."""

    async def play() -> list[Checked]:
        gate = asyncio.Semaphore(IN_FLIGHT)
        done = 0

        async def one(task: Task) -> Checked:
            nonlocal done
            async with gate:
                checked = await check_task(task, scratch)
            done += 1
            progress(what, done, len(tasks))
            return checked

        return list(await asyncio.gather(*(one(t) for t in tasks)))

    checked = asyncio.run(play())
    share = sum(c.nothing_passed for c in checked) / sum(c.total for c in checked)
    if share > NOTHING_LIMIT:
        raise BadInput(
            f"{what}: doing nothing satisfies {share:.0%} of the assertions, "
            f"more than {NOTHING_LIMIT:.0%}"
        )
    return checked


def write_splits(seed: int, out: Path, scratch: Path, progress: Progress) -> dict[str, int]:
    """Write pool.jsonl, heldout.jsonl and reserve.jsonl below `out`; return their sizes."""
    splits = {name: [p.task for p in plans] for name, plans in split_tasks(seed).items()}
    for name, tasks in splits.items():
        check_tasks(tasks, scratch, name, progress)
    out.mkdir(parents=True, exist_ok=True)
    for name, tasks in splits.items():
        write_text(out / f"{name}.jsonl", "".join(encode(task) + "\n" for task in tasks))
    return {name: len(tasks) for name, tasks in splits.items()}
