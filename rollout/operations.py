"""The operations that synthetic tasks are made of: what is asked, how it is done, how it is seen.

Each operation draws names and contents and returns one `Piece`: a sentence, the files that must be
there, the oracle's commands, commands that look before and check after, and the assertions. Oracle
commands are what a careful person would type; that they work is not believed but checked in the
sandbox, for every task, by `rollout.synth`. Operations marked `held_out` occur in held-out tasks
only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollout.vocabulary import EXTENSIONS, GENERIC_KEYS, GENERIC_STEMS, PLAIN_WORDS, Persona

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


def exists(path: str) -> Assertion:
    return {"kind": "file_exists", "path": path}


def gone(path: str) -> Assertion:
    return {"kind": "file_not_exists", "path": path}


def contains(path: str, *parts: str) -> Assertion:
    return {"kind": "file_contents_contain", "path": path, "must_contain": list(parts)}


def exactly(path: str, *lines: str) -> Assertion:
    """The file holds just these lines; space at the ends of lines and of the file is forgiven."""
    body = r"[ \t]*\n".join(re.escape(line) for line in lines)
    return {"kind": "file_contents_match_regex", "path": path, "regex": rf"\A\s*{body}\s*\Z"}


def lacks(path: str, word: str) -> Assertion:
    pattern = rf"\A(?![\s\S]*{re.escape(word)})"
    return {"kind": "file_contents_match_regex", "path": path, "regex": pattern}


def unchanged(path: str) -> Assertion:
    return {"kind": "file_unchanged", "path": path}


Operation = Callable[[Draw], Piece]


@dataclass(frozen=True)
class Registered:
    """An operation with its name, its difficulty and whether it is kept for held-out tasks."""

    name: str
    difficulty: str
    held_out: bool
    make: Operation


OPERATIONS: list[Registered] = []


def operation(difficulty: str, held_out: bool = False) -> Callable[[Operation], Operation]:
    def register(make: Operation) -> Operation:
        OPERATIONS.append(Registered(make.__name__, difficulty, held_out, make))
        return make

    return register


# Easy: one command says it all, nothing has to be read.


@operation("easy")
def create(d: Draw) -> Piece:
    path, line = d.file(), " ".join(d.words(2))
    return Piece(
        d.phrase(
            f"Create {path} with the text '{line}'.",
            f"Write '{line}' to a new file {path}.",
            f"Make a file {path} that says '{line}'.",
        ),
        {},
        (f"echo '{line}' > {path}",),
        (exists(path), exactly(path, line)),
        ("ls",),
        (f"cat {path}",),
    )


@operation("easy")
def append(d: Draw) -> Piece:
    path, lines, line = d.file(), d.lines(2, 3), " ".join(d.words(2))
    return Piece(
        d.phrase(
            f"Append the line '{line}' to {path}.",
            f"Add '{line}' at the end of {path}.",
        ),
        {path: text(lines)},
        (f"echo '{line}' >> {path}",),
        (contains(path, line), exactly(path, *lines, line)),
        (f"cat {path}",),
        (f"cat {path}", f"tail -n 1 {path}"),
    )


@operation("easy")
def rename(d: Draw) -> Piece:
    old, new, lines = d.file(), d.file(), d.lines(2, 3)
    return Piece(
        d.phrase(f"Rename {old} to {new}.", f"Give {old} the new name {new}."),
        {old: text(lines)},
        (f"mv {old} {new}",),
        (exactly(new, *lines), gone(old)),
        ("ls",),
        ("ls",),
    )


@operation("easy")
def copy(d: Draw) -> Piece:
    old, new, lines = d.file(), d.file(), d.lines(2, 3)
    return Piece(
        d.phrase(f"Copy {old} to {new}.", f"Make a copy of {old} called {new}."),
        {old: text(lines)},
        (f"cp {old} {new}",),
        (exists(new), exactly(new, *lines)),
        ("ls",),
        (f"cat {new}", "ls"),
    )


@operation("easy")
def delete(d: Draw) -> Piece:
    path, lines = d.file(), d.lines(2, 3)
    return Piece(
        d.phrase(f"Delete {path}.", f"Remove the file {path}."),
        {path: text(lines)},
        (f"rm {path}",),
        (gone(path),),
        ("ls",),
        ("ls",),
    )


@operation("easy")
def replace_word(d: Draw) -> Piece:
    path, lines = d.file(), d.lines(2, 3)
    old, new = d.rng.choice(lines), d.word()
    after = [new if line == old else line for line in lines]
    return Piece(
        d.phrase(
            f"Replace the word {old} with {new} in {path}.",
            f"In {path}, change {old} to {new}.",
        ),
        {path: text(lines)},
        (f"sed -i 's/{old}/{new}/g' {path}",),
        (contains(path, new), lacks(path, old), exactly(path, *after)),
        (f"cat {path}",),
        (f"cat {path}", f"grep {new} {path}"),
    )


@operation("easy")
def count_lines(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(3, 6)
    return Piece(
        d.phrase(
            f"Write only the number of lines in {path} to {out}.",
            f"Count the lines of {path} and put just the number in {out}.",
        ),
        {path: text(lines)},
        (f"wc -l < {path} > {out}",),
        (exists(out), exactly(out, str(len(lines)))),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("easy")
def make_folder(d: Draw) -> Piece:
    folder, name, line = d.folder(), d.file("txt"), d.word()
    return Piece(
        d.phrase(
            f"Create a folder {folder} and in it a file {name} with the text '{line}'.",
            f"Make the folder {folder} and write '{line}' to {folder}/{name}.",
        ),
        {},
        (f"mkdir -p {folder}", f"echo '{line}' > {folder}/{name}"),
        (exists(folder), exactly(f"{folder}/{name}", line)),
        ("ls",),
        (f"cat {folder}/{name}", f"ls {folder}"),
    )


# Middle: a tool beyond cp and mv, a nested path, several files.


@operation("middle")
def matching_lines(d: Draw) -> Piece:
    path, out, word = d.file(), d.file("txt"), d.word()
    lines = [f"{a} {word}" if i % 2 == 0 else a for i, a in enumerate(d.words(5))]
    hits = [line for line in lines if word in line]
    return Piece(
        d.phrase(
            f"Write the lines of {path} that contain {word} to {out}.",
            f"Put every line of {path} with the word {word} in {out}.",
        ),
        {path: text(lines)},
        (f"grep {word} {path} > {out}",),
        (exists(out), exactly(out, *hits)),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("middle")
def sort_lines(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(4, 5)
    return Piece(
        d.phrase(
            f"Sort the lines of {path} into {out}.",
            f"Write the lines of {path} in sorted order to {out}.",
        ),
        {path: text(lines)},
        (f"sort {path} > {out}",),
        (exists(out), exactly(out, *sorted(lines))),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("middle")
def first_line(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines()
    return Piece(
        d.phrase(
            f"Write the first line of {path} to {out}.",
            f"Put only the first line of {path} in {out}.",
        ),
        {path: text(lines)},
        (f"head -n 1 {path} > {out}",),
        (exists(out), exactly(out, lines[0])),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("middle", held_out=True)
def last_line(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines()
    return Piece(
        f"Write the last line of {path} to {out}.",
        {path: text(lines)},
        (f"tail -n 1 {path} > {out}",),
        (exists(out), exactly(out, lines[-1])),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("middle")
def upper_case(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(2, 3)
    return Piece(
        d.phrase(
            f"Write {path} in upper case to {out}.",
            f"Convert {path} to capital letters and save it as {out}.",
        ),
        {path: text(lines)},
        (f"tr a-z A-Z < {path} > {out}",),
        (exists(out), exactly(out, *(line.upper() for line in lines))),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("middle")
def nested_file(d: Draw) -> Piece:
    outer, inner, name, line = d.folder(), d.folder(), d.file("txt"), " ".join(d.words(2))
    path = f"{outer}/{inner}/{name}"
    return Piece(
        d.phrase(f"Write '{line}' to {path}.", f"Create {path} with the text '{line}'."),
        {},
        (f"mkdir -p {outer}/{inner}", f"echo '{line}' > {path}"),
        (exists(path), exactly(path, line)),
        ("ls",),
        (f"cat {path}", f"ls {outer}/{inner}"),
    )


@operation("middle")
def move_kind(d: Draw) -> Piece:
    folder, ext = d.folder(), d.rng.choice(("csv", "log", "cfg"))
    names = [d.file(ext) for _ in range(2)]
    word = d.word()
    return Piece(
        d.phrase(
            f"Move all .{ext} files into the folder {folder}.",
            f"Make a folder {folder} and move every .{ext} file into it.",
        ),
        {name: f"{word} {i}\n" for i, name in enumerate(names)},
        (f"mkdir -p {folder}", f"mv *.{ext} {folder}/"),
        tuple(a for n in names for a in (exists(f"{folder}/{n}"), gone(n))),
        ("ls",),
        (f"ls {folder}", "ls"),
    )


@operation("middle")
def join_files(d: Draw) -> Piece:
    first, second, out = d.file(), d.file(), d.file("txt")
    a, b = d.lines(2, 2), d.lines(2, 2)
    return Piece(
        d.phrase(
            f"Join {first} and {second} into {out}, in this order.",
            f"Write {first} followed by {second} to {out}.",
        ),
        {first: text(a), second: text(b)},
        (f"cat {first} {second} > {out}",),
        (exists(out), exactly(out, *a, *b)),
        ("ls",),
        (f"cat {out}",),
    )


@operation("middle")
def drop_lines(d: Draw) -> Piece:
    path, lines = d.file(), d.lines(4, 5)
    word = d.rng.choice(lines)
    return Piece(
        d.phrase(
            f"Delete the line with {word} from {path}.",
            f"Remove every line that contains {word} from {path}.",
        ),
        {path: text(lines)},
        (f"sed -i '/{word}/d' {path}",),
        (lacks(path, word), exactly(path, *(line for line in lines if line != word))),
        (f"cat {path}",),
        (f"cat {path}",),
    )


@operation("middle")
def set_key(d: Draw) -> Piece:
    path, keys, value = d.file("cfg"), [d.key() for _ in range(3)], d.number(100, 999)
    settings = {key: d.number() for key in keys}
    key = d.rng.choice(keys)
    after = {**settings, key: value}
    return Piece(
        d.phrase(
            f"Set {key} to {value} in {path}.",
            f"In {path}, change the value of {key} to {value}.",
        ),
        {path: text([f"{k}={v}" for k, v in settings.items()])},
        (f"sed -i 's/^{key}=.*/{key}={value}/' {path}",),
        (contains(path, f"{key}={value}"), exactly(path, *(f"{k}={v}" for k, v in after.items()))),
        (f"cat {path}",),
        (f"cat {path}", f"grep {key} {path}"),
    )


@operation("middle", held_out=True)
def lower_case(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), [w.upper() for w in d.lines(2, 3)]
    return Piece(
        f"Write {path} in lower case to {out}.",
        {path: text(lines)},
        (f"tr A-Z a-z < {path} > {out}",),
        (exists(out), exactly(out, *(line.lower() for line in lines))),
        (f"cat {path}",),
        (f"cat {out}",),
    )


# Hard: what to write depends on what is in the files.


def _table(d: Draw, low: int = 4, high: int = 5) -> list[tuple[str, int]]:
    """Rows of (word, number), all numbers different."""
    names = d.lines(low, high)
    return list(zip(names, d.rng.sample(range(10, 90), len(names)), strict=True))


def _csv(rows: list[tuple[str, int]]) -> str:
    return text([f"{name},{value}" for name, value in rows])


@operation("hard")
def sum_column(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), _table(d)
    return Piece(
        d.phrase(
            f"Add up the numbers in column 2 of {path} and write the sum to {out}.",
            f"Write the total of the second column of {path} to {out}.",
        ),
        {path: _csv(rows)},
        (f"awk -F, '{{s+=$2}} END {{print s}}' {path} > {out}",),
        (exists(out), exactly(out, str(sum(v for _, v in rows)))),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("hard")
def largest_row(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), _table(d)
    name = max(rows, key=lambda row: row[1])[0]
    return Piece(
        d.phrase(
            f"Write the name with the largest number in {path} to {out}.",
            f"Find the row of {path} with the highest value and write its name to {out}.",
        ),
        {path: _csv(rows)},
        (f"sort -t, -k2 -n {path} | tail -n 1 | cut -d, -f1 > {out}",),
        (exists(out), exactly(out, name)),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("hard", held_out=True)
def smallest_row(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), _table(d)
    name = min(rows, key=lambda row: row[1])[0]
    return Piece(
        f"Write the name with the smallest number in {path} to {out}.",
        {path: _csv(rows)},
        (f"sort -t, -k2 -n {path} | head -n 1 | cut -d, -f1 > {out}",),
        (exists(out), exactly(out, name)),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("hard")
def rows_above(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), _table(d)
    values = sorted(v for _, v in rows)
    limit = values[len(values) // 2] - 1
    hits = [f"{n},{v}" for n, v in rows if v > limit]
    return Piece(
        d.phrase(
            f"Write the rows of {path} whose number is above {limit} to {out}.",
            f"Put the rows of {path} with a value greater than {limit} in {out}.",
        ),
        {path: _csv(rows)},
        (f"awk -F, '$2 > {limit}' {path} > {out}",),
        (exists(out), exactly(out, *hits)),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("hard", held_out=True)
def rows_below(d: Draw) -> Piece:
    path, out, rows = d.file("csv"), d.file("txt"), _table(d)
    limit = sorted(v for _, v in rows)[len(rows) // 2] + 1
    hits = [f"{n},{v}" for n, v in rows if v < limit]
    return Piece(
        f"Write the rows of {path} whose number is below {limit} to {out}.",
        {path: _csv(rows)},
        (f"awk -F, '$2 < {limit}' {path} > {out}",),
        (exists(out), exactly(out, *hits)),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("hard")
def value_of_key(d: Draw) -> Piece:
    path, out = d.file("cfg"), d.file("txt")
    settings = {d.key(): d.number(10, 999) for _ in range(4)}
    key = d.rng.choice(list(settings))
    return Piece(
        d.phrase(
            f"Write the value of {key} in {path} to {out}.",
            f"Look up {key} in {path} and put only its value in {out}.",
        ),
        {path: text([f"{k}={v}" for k, v in settings.items()])},
        (f"grep '^{key}=' {path} | cut -d= -f2 > {out}",),
        (exists(out), exactly(out, str(settings[key]))),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("hard")
def condition(d: Draw) -> Piece:
    path, out, lines = d.file(), d.file("txt"), d.lines(3, 4)
    word = d.rng.choice(lines) if d.rng.random() < 0.5 else d.word()
    answer = "yes" if word in lines else "no"
    return Piece(
        d.phrase(
            f"If {path} contains {word}, write yes to {out}, otherwise write no.",
            f"Write yes to {out} if the word {word} is in {path}, and no if it is not.",
        ),
        {path: text(lines)},
        (f"if grep -q {word} {path}; then echo yes > {out}; else echo no > {out}; fi",),
        (exists(out), exactly(out, answer)),
        (f"cat {path}",),
        (f"cat {out}",),
    )


@operation("hard")
def find_and_move(d: Draw) -> Piece:
    folder, word = d.folder(), d.word()
    names = [d.file("txt") for _ in range(3)]
    files = {name: text(d.lines(2, 2)) for name in names}
    hit = d.rng.choice(names)
    files[hit] += f"{word}\n"
    return Piece(
        d.phrase(
            f"Move the .txt file that contains {word} into the folder {folder}.",
            f"One .txt file contains {word}. Move it into a new folder {folder}.",
        ),
        files,
        (f"mkdir -p {folder}", f"mv $(grep -l {word} *.txt) {folder}/"),
        (exists(f"{folder}/{hit}"), gone(hit), contains(f"{folder}/{hit}", word)),
        (f"grep -l {word} *.txt",),
        (f"ls {folder}", "ls"),
    )


@operation("hard")
def named_file(d: Draw) -> Piece:
    pointer, out = d.file("txt"), d.file("md")
    names = [d.file("dat") for _ in range(2)]
    files = {name: text(d.lines(2, 2)) for name in names}
    hit = d.rng.choice(names)
    return Piece(
        d.phrase(
            f"The file {pointer} holds the name of another file. Copy that file to {out}.",
            f"Copy the file whose name is in {pointer} to {out}.",
        ),
        {pointer: f"{hit}\n", **files},
        (f"cp $(cat {pointer}) {out}",),
        (exists(out), exactly(out, *files[hit].split())),
        (f"cat {pointer}",),
        (f"cat {out}",),
    )


@operation("hard")
def append_each(d: Draw) -> Piece:
    ext, line = d.rng.choice(("md", "log", "dat")), d.word()
    files = {d.file(ext): text(d.lines(2, 2)) for _ in range(2)}
    return Piece(
        d.phrase(
            f"Append the line '{line}' to every .{ext} file.",
            f"Add '{line}' at the end of each .{ext} file.",
        ),
        files,
        (f"for f in *.{ext}; do echo '{line}' >> $f; done",),
        tuple(exactly(name, *body.split(), line) for name, body in files.items()),
        ("ls",),
        (f"cat *.{ext}", f"tail -n 1 *.{ext}"),
    )


@operation("hard")
def copy_key(d: Draw) -> Piece:
    source, target, key = d.file("cfg"), d.file("cfg"), d.key()
    others = [d.key() for _ in range(2)]
    value, old = d.number(100, 999), d.number()
    before = {key: old, **{k: d.number() for k in others}}
    after = {**before, key: value}
    return Piece(
        d.phrase(
            f"Set {key} in {target} to the value that {key} has in {source}.",
            f"Copy the value of {key} from {source} to {target}.",
        ),
        {
            source: text([f"{others[0]}={d.number()}", f"{key}={value}"]),
            target: text([f"{k}={v}" for k, v in before.items()]),
        },
        (f'sed -i "s/^{key}=.*/$(grep ^{key}= {source})/" {target}',),
        (
            contains(target, f"{key}={value}"),
            exactly(target, *(f"{k}={v}" for k, v in after.items())),
        ),
        (f"cat {source}", f"cat {source} {target}"),
        (f"cat {target}",),
    )


@operation("hard")
def count_files(d: Draw) -> Piece:
    ext, out = d.rng.choice(("csv", "log", "dat")), d.file("txt")
    files = {d.file(ext): f"{d.word()}\n" for _ in range(d.rng.randint(2, 4))}
    return Piece(
        d.phrase(
            f"Write the number of .{ext} files to {out}.",
            f"Count the .{ext} files and put only the number in {out}.",
        ),
        files,
        (f"ls *.{ext} | wc -l > {out}",),
        (exists(out), exactly(out, str(len(files)))),
        ("ls",),
        (f"cat {out}",),
    )
