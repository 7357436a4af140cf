"""The oracle's episodes as demonstrations, in any environment that has an oracle.

The replies are written; everything else is as in a rollout: the run's template, the environment's
own answers, the ids that a policy sees. A task that its oracle does not pass is an error, because
an adapter would learn the wrong replies.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file
from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.envs.registry import make_world
from rollout.envs.tool_yardsticks import YARDSTICK_FORM
from rollout.flight import Attempt, RolloutProgress, fly
from rollout.player import Player
from rollout.policies import reciting
from rollout.synth.demonstrate import WRITTEN
from rollout.tasks import read_tasks
from rollout.yardsticks import ORACLE, oracle_when_asked
from scripts.base.display import Progress
from scripts.prepare.best_episodes import Chosen, held_out
from scripts.run.config import RunConfig
from scripts.run.template import chat_renderer, tool_form

IN_FLIGHT = 8


def oracle_episodes(
    config: RunConfig, file: Path, model_dir: Path, scratch: Path, progress: Progress
) -> Chosen:
    """One episode of every task of a file, under the settings of `config`.

    Raises `BadInput` for a task without an oracle, for one that its oracle does not pass, for one
    that is never learned from, and for a chat template whose tool form an oracle does not write.
    """
    tasks = read_tasks(file)
    for kept, ids in held_out(config, file).items():
        for task in tasks:
            if task.task_id in ids:
                raise BadInput(
                    f"{file}: task {task.task_id} is one of {kept}, or is like one in its prompt or"
                    " its marks, and those are never trained on; name another file, such as a pool"
                )
    form = tool_form(config.model, model_dir)
    if config.envs and form != YARDSTICK_FORM:
        raise BadInput(
            f"the chat template shows tools in the form {form}, and an oracle writes the form"
            f' {YARDSTICK_FORM}: set model.tool_form to "{YARDSTICK_FORM}", with --run in its'
            " run.toml."
            " A model that was trained with its template calls tools without an oracle:"
            f" `grpo sft OUT --fresh --model {config.model.path}`"
        )
    demos = _play(config, tasks, model_dir, scratch, progress)
    failed = [demo for demo in demos if not demo.grade.passed]
    if failed:
        first = failed[0]
        why = "; ".join(r.detail for r in first.grade.results if not r.passed)
        raise BadInput(
            f"{file}: the oracle does not pass {len(failed)} of {len(demos)} tasks; the first is"
            f" {first.task_id} ({why})"
        )
    origin = {"oracle_of": file.name, "tasks_sha256": sha256_file(file), "episodes": len(demos)}
    return Chosen(tuple(demos), origin)


def _play(
    config: RunConfig, tasks: Sequence[Task], model_dir: Path, scratch: Path, progress: Progress
) -> list[Trajectory]:
    renderer = chat_renderer(config.model, model_dir)
    site = config.site(scratch, YARDSTICK_FORM)
    player = Player(
        policy=lambda task, limits: reciting(oracle_when_asked(task), renderer, limits),
        worlds=functools.partial(make_world, site=site),
        settings=replace(config.rollout, concurrency=IN_FLIGHT),
        adapter_sha=ORACLE,
        policy_version=ORACLE,
        reward=Reward(config.reward),
    )

    def tell(p: RolloutProgress) -> None:
        progress("the oracle's episodes", p.finished, p.total)

    # The replies are written, so a turn's seed affects only the world.
    attempts = [Attempt(task, number) for number, task in enumerate(tasks)]
    played = asyncio.run(fly(attempts, player, lambda _: lambda turn: 0, on_progress=tell))
    return [replace(one, sampling=WRITTEN) for one in played]
