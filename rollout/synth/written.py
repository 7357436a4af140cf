"""A task that a model writes: what the model is asked for, and how its reply becomes a task.

A brief gives a persona, two skills and a difficulty, so that a thousand requests do not bring a
thousand times the same task. The reply is one JSON object. Nothing here believes it: whether its
commands do what its assertions say is shown in the sandbox, by `scripts.prepare.authoring`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict

from fieldkit.codec import from_plain
from fieldkit.errors import BadInput
from fieldkit.eval.assertions import (
    FILE_CONTENTS_CONTAIN,
    FILE_CONTENTS_MATCH_REGEX,
    FILE_EXISTS,
    FILE_NOT_EXISTS,
    FILE_UNCHANGED,
)
from fieldkit.files.json_text import parse_json
from fieldkit.records import Task
from rollout.envs.base import Message
from rollout.envs.shell import SHELL_ENV
from rollout.envs.shell_tasks import DIFFICULTIES
from rollout.synth.vocabulary import PERSONAS, Persona

SKILLS = (
    "move or rename files",
    "copy files",
    "delete files that match a rule",
    "make folders and sort files into them",
    "append or insert lines",
    "replace text in a file",
    "count lines, words or matches",
    "sort or deduplicate lines",
    "keep or drop lines that match a pattern",
    "take a column out of a CSV file",
    "add up or compare numbers",
    "join or split files",
    "find the file that contains something",
    "change one value in a settings file",
    "write a short report about several files",
)

COMMANDS = {"easy": "one or two commands", "middle": "two or three", "hard": "three to five"}
"""How long the solution of each difficulty is."""

ALIKE = 0.6
"""Two requests with this resemblance are one task. Of data/pool.jsonl's tasks, the most alike to a
held-out one has 0.63, and nine tenths are below 0.47."""

SHINGLE = 5

_TEXT = {"type": "string"}
_CLAIMS: dict[str, dict[str, Any]] = {
    FILE_EXISTS: {},
    FILE_NOT_EXISTS: {},
    FILE_CONTENTS_CONTAIN: {"must_contain": {"type": "array", "items": _TEXT, "minItems": 1}},
    FILE_CONTENTS_MATCH_REGEX: {"regex": _TEXT},
    FILE_UNCHANGED: {},
}
"""The assertions that a model may write, with their keys besides kind and path."""


def _object(**keys: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
    }


REPLY_SCHEMA = _object(
    prompt=_TEXT,
    files={"type": "array", "items": _object(path=_TEXT, content=_TEXT)},
    commands={"type": "array", "items": _TEXT, "minItems": 1},
    assertions={
        "type": "array",
        "minItems": 1,
        "items": {
            "anyOf": [
                _object(kind={"enum": [kind]}, path=_TEXT, **more) for kind, more in _CLAIMS.items()
            ]
        },
    },
)
"""JSON schema of a reply, for servers that hold a model to one."""


@dataclass(frozen=True)
class Brief:
    """What one task should be about. number: from 0, in the order in which tasks are asked for."""

    number: int
    persona: Persona
    skills: tuple[str, str]
    difficulty: str


def briefs(seed: int) -> Iterator[Brief]:
    """An endless sequence of briefs, set by the seed: each persona with each difficulty comes once
    before any comes again, with two skills at random."""
    rng = random.Random(f"{seed}/written")
    numbers = itertools.count()
    while True:
        combinations = list(itertools.product(PERSONAS, DIFFICULTIES))
        rng.shuffle(combinations)
        for persona, difficulty in combinations:
            first, second = rng.sample(SKILLS, 2)
            yield Brief(next(numbers), persona, (first, second), difficulty)


_EXAMPLE = {
    "prompt": "Sort the names in guests.txt into sorted.txt. Leave guests.txt as it is.",
    "files": [{"path": "guests.txt", "content": "Nora\nAbe\nLiv\n"}],
    "commands": ["sort guests.txt > sorted.txt"],
    "assertions": [
        {
            "kind": FILE_CONTENTS_MATCH_REGEX,
            "path": "sorted.txt",
            "regex": r"\AAbe\nLiv\nNora\s*\Z",
        },
        {"kind": FILE_UNCHANGED, "path": "guests.txt"},
    ],
}


def request(brief: Brief) -> list[Message]:
    """The message that asks for the brief's task; one, because some chat templates refuse a system
    message."""
    kinds = "; ".join(f"{kind}({', '.join(['path', *more])})" for kind, more in _CLAIMS.items())
    rules = (
        "You write small tasks for an agent that works in a Linux shell, in an empty folder that "
        "holds only your files. Answer with one JSON object and nothing else. Its keys:\n"
        "prompt: what the person asks the agent for, with the names of all files that are checked\n"
        "files: the files that are there before, with short contents\n"
        "commands: shell commands that solve the task (coreutils, sed, awk, grep; no network)\n"
        f"assertions: what must hold afterwards, of these kinds: {kinds}. Patterns are Python's, "
        "searched in the whole file. At least one assertion must fail before the commands run.\n"
        f"An example:\n{json.dumps(_EXAMPLE)}"
    )
    wish = (
        f"The person is {_with_article(brief.persona.name)} who wants to {brief.persona.intent}. "
        f"The task needs: {brief.skills[0]}; {brief.skills[1]}. It is {brief.difficulty}: "
        f"{COMMANDS[brief.difficulty]} solve it. Names and contents are your own, unlike the "
        "example's."
    )
    return [{"role": "user", "content": f"{rules}\n\n{wish}"}]


def _with_article(name: str) -> str:
    words = name.replace("-", " ")
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


@dataclass(frozen=True)
class _File:
    path: str
    content: str


@dataclass(frozen=True)
class _Written:
    """A reply's keys; others are ignored."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    prompt: str
    files: list[_File]
    commands: list[str]
    assertions: list[dict[str, Any]]


def written_task(brief: Brief, reply: str, author: str, prefix: str) -> Task:
    """The reply as a task with the id PREFIX-PERSONA-NUMBER, which is not checked yet.

    reply: the JSON object, or text around one. author: the model's name, which the task keeps.
    Raises `BadInput` with what is wrong with the reply.
    """
    begin, end = reply.find("{"), reply.rfind("}")
    if begin < 0 or end < begin:
        raise BadInput("there is no JSON object in it")
    value = parse_json(reply[begin : end + 1], "its JSON", finite=True)
    written = from_plain(_Written, value, "its JSON")
    info = {
        "persona": brief.persona.name,
        "intent": brief.persona.intent,
        "workspace_seed": {
            "files": [{"path": f.path, "kind": "text", "content": f.content} for f in written.files]
        },
        "skills_required": list(brief.skills),
        "verifiable_assertions": written.assertions,
        "difficulty": brief.difficulty,
        "estimated_steps": len(written.commands),
        "oracle": written.commands,
        "author": author,
    }
    task_id = f"{prefix}-{brief.persona.name}-{brief.number:04d}"
    return Task(task_id, SHELL_ENV, written.prompt.strip(), info)


def shingles(text: str) -> frozenset[str]:
    """Every run of `SHINGLE` characters of a text, letter case and spaces aside; of a shorter text,
    the text itself."""
    plain = " ".join(text.casefold().split())
    return frozenset(plain[i : i + SHINGLE] for i in range(max(1, len(plain) - SHINGLE + 1)))


def alike(tasks: Sequence[Task], others: Sequence[Task]) -> frozenset[str]:
    """The ids of those tasks whose prompt has a resemblance of `ALIKE` or more to one of others'.
    A task is no likeness of itself."""
    theirs = [(other.task_id, shingles(other.prompt)) for other in others]
    found = set()
    for task in tasks:
        mine = shingles(task.prompt)
        if any(resemblance(mine, s) >= ALIKE for other, s in theirs if other != task.task_id):
            found.add(task.task_id)
    return frozenset(found)


def resemblance(one: frozenset[str], other: frozenset[str]) -> float:
    """The share of two texts' shingles that both have, in [0, 1]: their Jaccard index (Broder
    1997).

    >>> resemblance(shingles("Sort a.txt."), shingles("sort  a.txt."))
    1.0
    """
    both = len(one & other)
    return both / (len(one) + len(other) - both)
