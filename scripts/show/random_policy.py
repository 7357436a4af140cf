"""A policy without any skill: commands drawn at random over the task's own files.

Beside it a trained policy's attempt shows what it has learned, because everything else is the same:
the sandbox, the stop protocol, the limits, the grader, the reward. Only the sampler is another one,
so nothing here plays: it draws replies. It reads the names and words that a model reads too, never
the assertions, and it knows nothing of what its commands did.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.eval.assertions import parse_seed
from fieldkit.records import Sampling, Task, Trajectory
from reward.shaping import reward
from rollout.engine.client import Completion
from rollout.envs.shell import make_environment
from rollout.player import Player
from rollout.seeds import eval_seed
from rollout.synth.demonstrate import STOP, block
from rollout.transcript import ChatRenderer
from scripts.run.config import RunConfig

NAME = "random"
"""What stands for the adapter's hash and the policy's version in its records."""

COMMANDS = (
    "ls",
    "cat {file}",
    "rm {file}",
    "mv {file} {other}",
    "cp {file} {other}",
    "touch {file}",
    "sort {file} > {other}",
    "grep {word} {file}",
    "echo {word} > {file}",
    "echo {word} >> {file}",
)
"""The grammar. Each of these, and saying that the task is done, is equally likely each turn."""

_FILE_NAME = re.compile(r"[\w-]+(?:/[\w-]+)*\.\w+")


@dataclass(frozen=True)
class Grammar:
    """What a reply is drawn from: names of files and words, each at least one."""

    files: tuple[str, ...]
    words: tuple[str, ...]

    @classmethod
    def of(cls, task: Task) -> Grammar:
        """The task's seed files, and the names and words of its prompt."""
        seed = parse_seed(task.info, f"task {task.task_id}")
        named = _FILE_NAME.findall(task.prompt)
        files = tuple(dict.fromkeys([*seed, *named])) or ("file.txt",)
        words = tuple(w for w in task.prompt.split() if w.isalpha()) or ("word",)
        return cls(files, words)

    def reply(self, rng: random.Random) -> str:
        """One reply: a command in its block, or that the task is done."""
        production = rng.choice((*COMMANDS, STOP))
        if production == STOP:
            return STOP
        file, other, word = rng.choice(self.files), rng.choice(self.files), rng.choice(self.words)
        command = production.format(
            file=shlex.quote(file), other=shlex.quote(other), word=shlex.quote(word)
        )
        return block(command)


class RandomSampler:
    """Stands where an engine does: a seed in, a reply's ids out; the prompt is not read."""

    def __init__(self, grammar: Grammar, renderer: ChatRenderer) -> None:
        self._grammar = grammar
        self._renderer = renderer

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        """A reply that depends on the seed alone. Its ids are written, so their logprobs are 0."""
        whole = self._renderer.encode_reply(self._grammar.reply(random.Random(seed)))
        ids = whole[: sampling.max_tokens]
        return Completion(ids, (0.0,) * len(ids), "stop" if ids == whole else "length")


def play_random(config: RunConfig, model_dir: Path, task: Task, k: int) -> Trajectory:
    """One attempt under the run's limits, with the evaluation's seeds: always the same.

    model_dir: for its tokenizer, which counts the tokens of context. Raises as `Player.play`.
    """
    renderer = ChatRenderer(model_dir)
    with tempfile.TemporaryDirectory() as scratch:
        player = Player(
            sampler=RandomSampler(Grammar.of(task), renderer),
            renderer=renderer,
            environments=functools.partial(
                make_environment, settings=config.sandbox, scratch=Path(scratch)
            ),
            settings=config.rollout,
            adapter_sha=NAME,
            policy_version=NAME,
            reward=functools.partial(reward, settings=config.reward),
        )
        seeds = functools.partial(eval_seed, task.task_id, k)
        return asyncio.run(player.play(task, k, seeds))
