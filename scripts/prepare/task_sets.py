"""`grpo synth`: writes the task files after checking every task in the sandbox.

The check: the oracle's commands, run in the environment of every rollout, satisfy every assertion,
and doing nothing passes no task. A file is written only if all of its tasks pass the check.
"""

from __future__ import annotations

import asyncio
import functools
import shlex
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.files.atomic import write_text
from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.envs.registry import make_world
from rollout.envs.tool_yardsticks import YARDSTICK_FORM
from rollout.flight import Attempt, RolloutProgress, fly
from rollout.player import TurnSeeds
from rollout.seeds import eval_seed
from rollout.synth.splits import split_tasks
from rollout.transcript import ChatRenderer
from rollout.yardsticks import DO_NOTHING, ORACLE, yardstick_player
from scripts.base.display import Progress
from scripts.run.config import RunConfig

NOTHING_LIMIT = 0.25
"""The largest share of all assertions that may hold when nothing is done."""
IN_FLIGHT = 8


def play_yardstick(
    name: str,
    tasks: Sequence[Task],
    scratch: Path,
    what: str,
    progress: Progress,
    under: RunConfig | None = None,
    load: Callable[[], ChatRenderer] | None = None,
    run: Callable[[Coroutine[Any, Any, list[Trajectory]]], list[Trajectory]] = asyncio.run,
) -> list[Trajectory]:
    """One episode of every task by the named yardstick. Raises `Unavailable` without a sandbox.

    under: the settings with limits, sandbox and reward; the defaults if None. load: gives the
    tokenizer, for a yardstick that has ids. run: runs a coroutine; one event loop's for several
    yardsticks, where coroutines of an environment may keep what belongs to the first loop.
    """
    config = under or RunConfig()
    site = config.site(scratch, YARDSTICK_FORM)

    def tell(p: RolloutProgress) -> None:
        progress(what, p.finished, p.total)

    player = yardstick_player(
        name,
        worlds=functools.partial(make_world, site=site),
        settings=replace(config.rollout, concurrency=IN_FLIGHT),
        reward=Reward(config.reward),
        load=load,
    )

    def seeds(attempt: Attempt) -> TurnSeeds:
        return functools.partial(eval_seed, attempt.task.task_id, attempt.k)

    attempts = [Attempt(task, 0) for task in tasks]
    return run(fly(attempts, player, seeds, on_progress=tell))


def why_unsolved(grade: Grade) -> str:
    """The assertions that do not hold after a task's own oracle, in words; empty if it passes."""
    unmet = [f"{r.kind} {r.path}: {r.detail}" for r in grade.results if not r.passed]
    return "" if grade.passed else "; ".join(unmet) or "it has no assertion"


def prove_tasks(tasks: Sequence[Task], scratch: Path, what: str, progress: Progress) -> None:
    """Raises `BadInput` naming the first task that doing nothing passes or its oracle does not, or
    if doing nothing satisfies too large a share of the assertions."""
    nothing, oracle = (
        play_yardstick(name, tasks, scratch, what, progress) for name in (DO_NOTHING, ORACLE)
    )
    for task, idle, solved in zip(tasks, nothing, oracle, strict=True):
        if idle.grade.passed:
            raise BadInput(f"{task.task_id}: doing nothing passes it")
        if why := why_unsolved(solved.grade):
            raise BadInput(f"{task.task_id}: its oracle does not pass ({why})")
    share = sum(t.grade.n_passed for t in nothing) / sum(t.grade.n_total for t in nothing)
    if share > NOTHING_LIMIT:
        raise BadInput(
            f"{what}: doing nothing satisfies {share:.0%} of the assertions, "
            f"more than {NOTHING_LIMIT:.0%}"
        )


def write_splits(
    seed: int, out: Path, scratch: Path, progress: Progress, force: bool = False
) -> dict[str, int]:
    """Write a file for each of `SPLITS` below `out`; return their sizes.

    Raises `BadInput`, before a task is checked, if `out` is a file, or if a file there holds other
    tasks and `force` is not given.
    """
    splits = {name: [p.task for p in plans] for name, plans in split_tasks(seed).items()}
    texts = {
        out / f"{name}.jsonl": "".join(encode(task) + "\n" for task in tasks)
        for name, tasks in splits.items()
    }
    _refuse_loss(out, texts, force)
    out.mkdir(parents=True, exist_ok=True)  # an impossible path is an error before any work
    for name, tasks in splits.items():
        prove_tasks(tasks, scratch, name, progress)
    for path, text in texts.items():
        write_text(path, text)
    return {name: len(tasks) for name, tasks in splits.items()}


def _refuse_loss(out: Path, texts: Mapping[Path, str], force: bool) -> None:
    if out.is_file():
        raise BadInput(
            f"{out}: is a file; name a folder: `grpo synth --out {shlex.quote(f'{out}-tasks')}`"
        )
    other = [p for p, text in texts.items() if p.exists() and p.read_bytes() != text.encode()]
    if other and not force:
        raise BadInput(
            f"{other[0]}: it holds other tasks, which would be lost; `grpo synth --out DIR` writes"
            " to another folder, --force replaces them"
        )
