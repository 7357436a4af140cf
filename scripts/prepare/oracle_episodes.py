"""The oracle's episodes as demonstrations, in any environment that has an oracle.

The replies are written, and everything else is as in a rollout: the run's template, the
environment's own answers, ids as a policy is shown them. A task that its oracle does not pass is an
error, because an adapter would learn it.
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
from rollout.envs.base import Site
from rollout.envs.registry import make_world
from rollout.player import Player
from rollout.policies import Policy, SampledPolicy, WrittenSampler
from rollout.settings import EpisodeSettings
from rollout.synth.demonstrate import WRITTEN
from rollout.tasks import read_tasks
from rollout.yardsticks import ORACLE, YARDSTICK_FORM, oracle_replies
from scripts.base.display import Progress
from scripts.prepare.best_episodes import Chosen
from scripts.run.config import RunConfig
from scripts.run.template import chat_renderer, tool_form

IN_FLIGHT = 8


def oracle_episodes(
    config: RunConfig, file: Path, model_dir: Path, scratch: Path, progress: Progress
) -> Chosen:
    """One episode of every task of a file, under the settings of `config`.

    Raises `BadInput` for a task without an oracle or that its oracle does not pass, and where the
    chat template shows tools in a form that an oracle does not write.
    """
    tasks = read_tasks(file)
    form = tool_form(config.model, model_dir)
    if config.envs and form != YARDSTICK_FORM:
        raise BadInput(
            f"the chat template shows tools in the form {form}, and an oracle writes the form"
            f" {YARDSTICK_FORM}; add --set 'model.tool_form=\"{YARDSTICK_FORM}\"'"
        )
    demos = asyncio.run(_play(config, tasks, model_dir, scratch, progress))
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


async def _play(
    config: RunConfig, tasks: Sequence[Task], model_dir: Path, scratch: Path, progress: Progress
) -> list[Trajectory]:
    renderer = chat_renderer(config.model, model_dir)
    gate, done = asyncio.Semaphore(IN_FLIGHT), 0

    def policy(task: Task, limits: EpisodeSettings) -> Policy:
        left = iter(oracle_replies(task))
        return SampledPolicy(WrittenSampler(lambda *_: next(left), renderer), renderer, limits)

    site = Site(config.sandbox, scratch, config.rollout.protocol, YARDSTICK_FORM)
    player = Player(
        policy=policy,
        worlds=functools.partial(make_world, site=site),
        settings=config.rollout,
        adapter_sha=ORACLE,
        policy_version=ORACLE,
        reward=Reward(config.reward),
    )

    async def one(number: int, task: Task) -> Trajectory:
        nonlocal done
        async with gate:
            played = await player.play(task, number, seeds=lambda turn: 0)
        done += 1
        progress("the oracle's episodes", done, len(tasks))
        return replace(played, sampling=WRITTEN)

    return list(await asyncio.gather(*(one(i, task) for i, task in enumerate(tasks))))
