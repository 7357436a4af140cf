"""An endpoint's stored episodes, with the ids that a model in training would have seen.

An endpoint gives text and no ids. If a task's first messages are known without an episode, the ids
are those of the text. In other environments only `reset` gives them, so the stored replies are
replayed in a fresh world. An episode that gets other answers this time is left out, because a model
would learn replies to messages that were never shown.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fieldkit.records import StopReason, Task, Trajectory, Turn
from reward.reward import Reward
from rollout.envs.base import Message
from rollout.envs.registry import environment_of, make_world, opening_of
from rollout.envs.thoughts import after_thoughts
from rollout.envs.tool_yardsticks import YARDSTICK_FORM
from rollout.player import Player
from rollout.policies import SampledPolicy, WrittenSampler
from rollout.synth.demonstrate import WRITTEN
from rollout.transcript import ChatRenderer
from scripts.base.display import Progress, silent
from scripts.run.config import RunConfig

IN_FLIGHT = 8


def with_ids(
    config: RunConfig,
    tasks: Mapping[str, Task],
    demos: Sequence[Trajectory],
    renderer: ChatRenderer,
    progress: Progress = silent,
) -> list[Trajectory]:
    """The episodes of `demos` that can be given ids, in order, with the ids that the renderer's
    model would read and write.

    config: how the endpoint's episodes were played. tasks: as they were played, by id. Raises as
    playing does if a world cannot be made.
    """
    found = asyncio.run(_with_ids(config, tasks, demos, renderer, progress))
    # A reply that the limit cut has no end of turn to be learned; what comes next closes it.
    return [
        replace(
            demo,
            turns=tuple(
                _as_it_ended(turn, said.finish_reason, renderer.eot_id)
                for turn, said in zip(demo.turns, stored.turns, strict=True)
            ),
        )
        for demo, stored in zip(found, demos, strict=True)
        if demo is not None
    ]


async def _with_ids(
    config: RunConfig,
    tasks: Mapping[str, Task],
    demos: Sequence[Trajectory],
    renderer: ChatRenderer,
    progress: Progress,
) -> list[Trajectory | None]:
    gate, done = asyncio.Semaphore(IN_FLIGHT), itertools.count(1)
    with tempfile.TemporaryDirectory() as scratch:

        async def one(demo: Trajectory) -> Trajectory | None:
            task = tasks[demo.task_id]
            if environment_of(task).opening is not None:
                return _rendered(demo, task, renderer)
            async with gate:
                found = await _said_again(config, demo, task, renderer, Path(scratch))
            progress("episodes replayed", next(done), len(demos))
            return found

        return list(await asyncio.gather(*map(one, demos)))


def _as_it_ended(turn: Turn, finish_reason: str, eot_id: int) -> Turn:
    """A turn that ended so, with ids: one that was cut has no end of turn."""
    if finish_reason != "length" or turn.completion_ids[-1] != eot_id:
        return turn
    ids, logprobs = turn.completion_ids[:-1], turn.logprobs[:-1]
    return replace(turn, completion_ids=ids, logprobs=logprobs, finish_reason="length")


def _rendered(demo: Trajectory, task: Task, renderer: ChatRenderer) -> Trajectory:
    """The episode from its texts: its replies become written ids, as for an oracle."""
    opening = opening_of(task)
    talk = renderer.start(opening.messages, opening.tools)
    turns: list[Turn] = []
    for turn in demo.turns:
        ids = renderer.encode_reply(turn.text, talk.prompt_ids)
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
    """The episode with the turns of a replay of its replies; None if the replay differs."""
    replies = iter([turn.text for turn in demo.turns])
    # A replay that lasts longer differs, whatever comes next.
    sampler = WrittenSampler(lambda *_: next(replies, ""), renderer)
    player = Player(
        policy=lambda _, limits: SampledPolicy(sampler, renderer, limits),
        # Endpoints are shown tools in the form in which yardsticks write calls.
        worlds=functools.partial(make_world, site=config.site(scratch, YARDSTICK_FORM)),
        settings=config.rollout,
        adapter_sha=demo.adapter_sha,
        policy_version=demo.turns[0].policy_version,
        reward=Reward(config.reward),
    )
    again = await player.play(task, demo.k, lambda turn: 0)
    same = _seen(again) == _seen(demo) and again.grade.passed
    return replace(demo, turns=again.turns, sampling=WRITTEN) if same else None


def _seen(episode: Trajectory) -> tuple[StopReason, list[tuple[str, str | None]]]:
    """What was said, the answers, and how the episode ended. Where the model's prompts open a
    thought, a written reply has one that its text had not."""
    said = [(after_thoughts(turn.text).strip(), turn.observation) for turn in episode.turns]
    return episode.stop_reason, said
