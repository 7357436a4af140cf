"""The operations of synthetic tasks: the request, the commands that do it, the assertions.

Each operation draws names and contents and returns one `Piece`: a sentence, the files that must
exist, the oracle's commands, commands that look before and check after, and the assertions. Oracle
commands are what a careful person would type; `scripts.prepare.task_sets` checks in the sandbox,
for every task, that they work. An operation with `only_in` occurs in that split only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollout.synth.vocabulary import EXTENSIONS, GENERIC_KEYS, GENERIC_STEMS, PLAIN_WORDS, Persona

Assertion = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """One operation of one task. `looks` may be run before the work, `checks` after it."""

    sentence: str
    files: dict[str, str]
    commands: tuple[str, ...]
    assertions: tuple[Assertion, ...]
    looks: tuple[str, ...]
    checks: tuple[str, ...]


@dataclass
class Draw:
    """Random names and contents for one task; no file, folder or word is drawn twice."""

    rng: random.Random
    persona: Persona
    used: set[str] = field(default_factory=set)

    def pick(self, options: tuple[str, ...]) -> str:
        """One of `options` that this task has not used yet."""
        free = [o for o in options if o not in self.used]
        choice = self.rng.choice(free)
        self.used.add(choice)
        return choice

    def stem(self) -> str:
        return self.pick(self.persona.stems + GENERIC_STEMS)

    def file(self, ext: str | None = None) -> str:
        return f"{self.stem()}.{ext or self.rng.choice(EXTENSIONS[:3])}"

    def folder(self) -> str:
        return self.pick(self.persona.folders)

    def word(self) -> str:
        return self.pick(self.persona.words + PLAIN_WORDS)

    def words(self, n: int) -> list[str]:
        return [self.word() for _ in range(n)]

    def key(self) -> str:
        return self.pick(self.persona.keys + GENERIC_KEYS)

    def number(self, low: int = 2, high: int = 99) -> int:
        return self.rng.randint(low, high)

    def phrase(self, *options: str) -> str:
        return self.rng.choice(options)

    def lines(self, low: int = 3, high: int = 5) -> list[str]:
        return self.words(self.rng.randint(low, high))


def text(lines: list[str]) -> str:
    """Lines as the contents of a text file."""
    return "".join(f"{line}\n" for line in lines)


def table_rows(d: Draw, low: int = 4, high: int = 5) -> list[tuple[str, int]]:
    """Rows of (word, number), all numbers different."""
    names = d.lines(low, high)
    return list(zip(names, d.rng.sample(range(10, 90), len(names)), strict=True))


def csv_text(rows: list[tuple[str, int]]) -> str:
    """The rows as the contents of a .csv file without a header."""
    return text([f"{name},{value}" for name, value in rows])


def exists(path: str) -> Assertion:
    return {"kind": "file_exists", "path": path}


def gone(path: str) -> Assertion:
    return {"kind": "file_not_exists", "path": path}


def contains(path: str, *parts: str) -> Assertion:
    return {"kind": "file_contents_contain", "path": path, "must_contain": list(parts)}


def exactly(path: str, *lines: str) -> Assertion:
    """The file holds exactly these lines; space at the ends of lines and of the file is ignored."""
    body = r"[ \t]*\n".join(re.escape(line) for line in lines)
    return {"kind": "file_contents_match_regex", "path": path, "regex": rf"\A\s*{body}\s*\Z"}


def lacks(path: str, word: str) -> Assertion:
    pattern = rf"\A(?![\s\S]*{re.escape(word)})"
    return {"kind": "file_contents_match_regex", "path": path, "regex": pattern}


def unchanged(path: str) -> Assertion:
    return {"kind": "file_unchanged", "path": path}


def to_file(
    sentence: str, files: dict[str, str], command: str, paths: tuple[str, str], *lines: str
) -> Piece:
    """One command reads the first of `paths` and writes exactly these lines to the second."""
    read, written = paths
    claims = (exists(written), exactly(written, *lines))
    return Piece(sentence, files, (command,), claims, (f"cat {read}",), (f"cat {written}",))


Operation = Callable[[Draw], Piece]


@dataclass(frozen=True)
class Registered:
    """An operation with its name and its difficulty. only_in: the only split that has it; "" if
    every split may have it."""

    name: str
    difficulty: str
    only_in: str
    make: Operation


OPERATIONS: list[Registered] = []
HELDOUT, FINAL = "heldout", "final"
"""The splits that have operations of their own."""


def operation(difficulty: str, only_in: str = "") -> Callable[[Operation], Operation]:
    def register(make: Operation) -> Operation:
        OPERATIONS.append(Registered(make.__name__, difficulty, only_in, make))
        return make

    return register
