"""An endpoint's stored episodes with the ids that a model in training would have been shown.

An endpoint gives text and no ids. Where a task's first messages are known without an episode, the
ids are those of the text. In any other environment only `reset` tells what was shown, so the stored
replies are said again to a fresh world. An episode that its world answers otherwise this time is
left out: a model would learn replies to what it was never shown.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fieldkit.records import StopReason, Task, Trajectory, Turn
from reward.reward import Reward
from rollout.envs.base import Message, Site
from rollout.envs.registry import environment_of, make_world, opening_of
from rollout.envs.tool_yardsticks import YARDSTICK_FORM
from rollout.player import Player
from rollout.policies import SampledPolicy, WrittenSampler
from rollout.synth.demonstrate import WRITTEN
from rollout.transcript import ChatRenderer
from scripts.run.config import RunConfig

IN_FLIGHT = 8


def with_ids(
    config: RunConfig,
    tasks: Mapping[str, Task],
    demos: Sequence[Trajectory],
    renderer: ChatRenderer,
) -> list[Trajectory]:
    """Those of `demos` that have ids, in order, their turns' ids as the renderer's model is shown
    them and would write them.

    config: how the endpoint's episodes were played. tasks: as they were played, by id. Raises what
    playing raises where a world cannot be had.
    """
    found = asyncio.run(_with_ids(config, tasks, demos, renderer))
    return [demo for demo in found if demo is not None]


async def _with_ids(
    config: RunConfig,
    tasks: Mapping[str, Task],
    demos: Sequence[Trajectory],
    renderer: ChatRenderer,
) -> list[Trajectory | None]:
    gate = asyncio.Semaphore(IN_FLIGHT)
    with tempfile.TemporaryDirectory() as scratch:

        async def one(demo: Trajectory) -> Trajectory | None:
            task = tasks[demo.task_id]
            if environment_of(task).opening is not None:
                return _rendered(demo, task, renderer)
            async with gate:
                return await _said_again(config, demo, task, renderer, Path(scratch))

        return list(await asyncio.gather(*map(one, demos)))


def _rendered(demo: Trajectory, task: Task, renderer: ChatRenderer) -> Trajectory:
    """The episode by its texts alone: its replies are written ids, as those of an oracle are."""
    opening = opening_of(task)
    talk = renderer.start(opening.messages, opening.tools)
    turns: list[Turn] = []
    for turn in demo.turns:
        ids = renderer.encode_reply(turn.text)
        turns.append(
            replace(
                turn,
                prompt_ids=talk.prompt_ids,
                completion_ids=ids,
                logprobs=(0.0,) * len(ids),
            )
        )
        talk.add_completion(ids)
        told: Message = {"role": "user", "content": turn.observation or ""}
        talk.add_observation([told])
    return replace(demo, turns=tuple(turns))


async def _said_again(
    config: RunConfig, demo: Trajectory, task: Task, renderer: ChatRenderer, scratch: Path
) -> Trajectory | None:
    """The episode with the turns of a second one with the same replies; None where that one was
    another."""
    replies = iter([turn.text for turn in demo.turns])
    # Where the second episode lasts longer it is another one, whatever is said then.
    sampler = WrittenSampler(lambda *_: next(replies, ""), renderer)
    player = Player(
        policy=lambda _, limits: SampledPolicy(sampler, renderer, limits),
        # Endpoints are told of tools in the form in which yardsticks write them.
        worlds=functools.partial(
            make_world,
            site=Site(config.sandbox, scratch, config.rollout.protocol, YARDSTICK_FORM),
        ),
        settings=config.rollout,
        adapter_sha=demo.adapter_sha,
        policy_version=demo.turns[0].policy_version,
        reward=Reward(config.reward),
    )
    again = await player.play(task, demo.k, lambda turn: 0)
    same = _seen(again) == _seen(demo) and again.grade.passed
    return replace(demo, turns=again.turns, sampling=WRITTEN) if same else None


def _seen(episode: Trajectory) -> tuple[StopReason, list[tuple[str, str | None]]]:
    """What was said and answered, and how it ended."""
    return episode.stop_reason, [(turn.text, turn.observation) for turn in episode.turns]
