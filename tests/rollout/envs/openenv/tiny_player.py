"""The tiny model, taught to play the games of docs/openenv badly.

In each game it says one of a few replies by chance, so the episodes of a group differ, and with
them what the game pays: a step has something to learn from.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.envs.base import Site
from rollout.envs.registry import make_world
from rollout.player import Player
from rollout.policies import WrittenSampler, sampled
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.prepare.sft import as_examples
from tests.tiny_model import make_adapter, make_tiny_model
from tests.tiny_policy import teach

REPLIES = {
    "echo": ("echo: tea", "echo: tea", "echo: milk", "I do not know."),
    "catch": ("move: left", "move: stay", "move: right"),
    "games": ("play: [3]", "play: [8]", "play: [12]", "play: [17]"),
    "wordle": ("play: [crane]", "play: [cycle]", "play: [apple]", "play: [stone]"),
}
"""What the model says in each environment."""

TASKS = (
    Task("say", "echo", "Play. ", {"word": "tea"}),
    Task("catch", "catch", "Play. ", {"seed": 1}),
    Task("guess", "games", "Play. ", {"seed": 5, "game": "GuessTheNumber-v0"}),
    Task("word", "wordle", "Play. ", {"seed": 3}),  # the secret is "cycle"
)

TURNS = 12
"""The longest game: ten guesses, or nine moves."""

_EPISODES = 20
"""Of each task, to learn from."""

_STEPS = 800


def make_tiny_player(
    folder: Path,
    tasks: Sequence[Task] = TASKS,
    replies: Mapping[str, Sequence[str]] = REPLIES,
    *,
    times: int = _EPISODES,
    steps: int = _STEPS,
) -> tuple[Path, Path]:
    """Make the model and a LoRA adapter for it below `folder`; return both folders.

    replies: what it says, by environment. times: episodes of each task, to learn from in so many
    steps; with few of them it says something of its own on some machines. The environments of the
    tasks are registered; their servers and programs are started.
    """
    model_dir = make_tiny_model(folder / "model")
    demos = episodes_by_chance(model_dir, folder, tasks, replies, times)
    examples = [(e["input_ids"], e["labels"]) for demo in demos for e in as_examples(demo)]
    teach(model_dir, examples, steps)
    return model_dir, make_adapter(folder / "adapter", model_dir, scale=0.02)


def episodes_by_chance(
    model_dir: Path,
    folder: Path,
    tasks: Sequence[Task],
    replies: Mapping[str, Sequence[str]],
    times: int,
) -> list[Trajectory]:
    """`times` episodes of each task whose replies are drawn by chance, the environments in turn, in
    the ids of the model's tokenizer."""
    return asyncio.run(_played(model_dir, folder, tasks, replies, times))


async def _played(
    model_dir: Path,
    folder: Path,
    tasks: Sequence[Task],
    replies: Mapping[str, Sequence[str]],
    times: int,
) -> list[Trajectory]:
    chat = ChatRenderer(model_dir)
    site = Site(SandboxSettings(), folder, ledger=folder / "ledger.json")
    limits = EpisodeSettings(max_turns=TURNS)
    played = []
    for k in range(times):
        for task in tasks:
            chance = random.Random(f"{task.env} {k}")

            def said(
                seed: int, ids: Sequence[int], task: Task = task, chance: random.Random = chance
            ) -> str:
                return chance.choice(replies[task.env])

            player = Player(
                policy=sampled(WrittenSampler(said, chat), chat),
                worlds=lambda t: make_world(t, site),
                settings=limits,
                adapter_sha="written",
                policy_version="written",
                reward=Reward(),
            )
            played.append(await player.play(task, k, lambda turn: turn + 1))
    return played
