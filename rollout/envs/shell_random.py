"""A random shell policy: commands drawn at random over the task's own files.

It uses the names and words that a model reads too, and neither the assertions nor the results of
its commands. This module only draws replies; it plays nothing.
"""

from __future__ import annotations

import random
import re
import shlex
from dataclasses import dataclass

from fieldkit.eval.assertions import parse_seed
from fieldkit.records import Task
from rollout.envs.shell_protocol import STOP, block

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
    """What replies are drawn from: file names and words, at least one of each."""

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


def random_reply(task: Task, shown: str, rng: random.Random) -> str:
    """One reply for `task`; the observations are not used."""
    return Grammar.of(task).reply(rng)
