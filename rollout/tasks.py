"""Task files: reading them, refusing bad ones, and keeping pool and held-out set apart.

A bad task costs a night and shows only in the morning, as an assertion that nobody passes; so a
task file is read as a whole and checked before anything is played. Everything here is decided from
the text of the file: that oracle and grader agree is for the sandbox to show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import regex

from fieldkit.errors import BadInput
from fieldkit.eval.assertions import Assertion, AssertionKind, parse_assertions, parse_seed
from fieldkit.files.atomic import read_raw_lines
from fieldkit.records import Task, decode
from rollout.envs.regex_check import only_texts, regex_fault
from rollout.envs.shell import system_prompt

SHELL_ENV = "clawgym"
"""The environment whose tasks carry a workspace and file assertions."""

DIFFICULTIES = ("easy", "middle", "hard")


@dataclass(frozen=True)
class TaskProblem:
    """One thing wrong with one task. `where` is file:line."""

    where: str
    task_id: str
    """Empty where the line could not be read as a task."""
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {f'{self.task_id}: ' if self.task_id else ''}{self.reason}"


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Every task of a JSONL file, in file order, all of them sound.

    Raises `BadInput` naming file and line for the first problem, and how many there are; also for a
    file without tasks.
    """
    return tuple(_sound(path).values())


def decode_tasks(path: Path) -> tuple[Task, ...]:
    """Every task of a file that was checked before: decoded and no more.

    Checking every regular expression again takes longer than reading the file does. Raises
    `BadInput` naming file and line for one that cannot be decoded.
    """
    return tuple(_decode(raw, f"{path}:{line}") for line, raw in _lines(path))


def check_tasks(path: Path) -> tuple[TaskProblem, ...]:
    """Every problem of a task file, in file order. `BadInput` only where there is no such file."""
    tasks, problems = _read(path)
    if not tasks and not problems:
        return (TaskProblem(f"{path}:1", "", "there is no task in the file"),)
    return tuple(problems)


def check_disjoint(pool: Path, held_out: Path) -> None:
    """Raise `BadInput`, naming both lines, where the pool shares a task with the held-out set.

    Two tasks are shared when they have the same id, the same prompt (letter case and spaces apart),
    the same set of seed files (names and contents; none are not a set) or the same set of
    assertions: training on one would be practising for the other.
    """
    known = {
        sign: (f"{held_out}:{line}", task)
        for line, task in _sound(held_out).items()
        for sign in signatures(task)
    }
    for line, task in _sound(pool).items():
        for sign in signatures(task):
            if sign in known:
                where, other = known[sign]
                raise BadInput(
                    f"{pool}:{line}: task {task.task_id} has the same {sign[0]} as held-out task"
                    f" {other.task_id} ({where}); held-out tasks are never trained on, so remove"
                    " one of them"
                )


def signatures(task: Task) -> list[tuple[str, str]]:
    """What a task may not share with one of another split: (what it is, the thing itself)."""
    signs = [("task_id", task.task_id), ("prompt", " ".join(task.prompt.casefold().split()))]
    if task.env == SHELL_ENV:
        files = _canonical(task.info["workspace_seed"]["files"])
        signs += [("seed files", files)] if files != "[]" else []
        signs.append(("assertions", _canonical(task.info["verifiable_assertions"])))
    return signs


def _canonical(items: Sequence[Any]) -> str:
    return json.dumps(sorted({json.dumps(item, sort_keys=True) for item in items}))


def _sound(path: Path) -> dict[int, Task]:
    """The tasks of a file by line, or `BadInput`."""
    tasks, problems = _read(path)
    if problems:
        more = f" ({len(problems)} problems in all)" if len(problems) > 1 else ""
        raise BadInput(f"{problems[0]}{more}; `grpo tasks check {path}` lists them all")
    if not tasks:
        raise BadInput(f"{path}: there is no task in it")
    return tasks


# --- reading --------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[int, Task], list[TaskProblem]]:
    """The tasks that could be decoded, by line, and everything that is wrong."""
    tasks: dict[int, Task] = {}
    problems: list[TaskProblem] = []
    first_line: dict[str, int] = {}
    for line, raw in _lines(path):
        where = f"{path}:{line}"
        try:
            task = _decode(raw, where)
        except BadInput as e:
            problems.append(TaskProblem(where, "", _without(where, e)))
            continue
        if task.task_id in first_line:
            reason = f"duplicate id, first in line {first_line[task.task_id]}"
            problems.append(TaskProblem(where, task.task_id, reason))
        first_line.setdefault(task.task_id, line)
        tasks[line] = task
        problems += [TaskProblem(where, task.task_id, r) for r in task_faults(task, where)]
    return tasks, problems


def _decode(raw: bytes, where: str) -> Task:
    try:
        text = raw.decode()
    except UnicodeDecodeError as e:
        raise BadInput(f"{where}: not UTF-8 ({e})") from None
    return decode(Task, text, where)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.is_file():
        raise BadInput(f"{path}: no such file; `grpo synth` writes the default task sets")
    return read_raw_lines(path)


def _without(where: str, error: BadInput) -> str:
    return str(error).removeprefix(f"{where}: ")


# --- what can be wrong with a task ----------------------------------------------------------------


def task_faults(task: Task, where: str) -> list[str]:
    """Everything wrong with one decoded task, as reasons; `where` is for the messages of others."""
    faults = [f"{key} is empty" for key in ("task_id", "prompt") if not getattr(task, key).strip()]
    try:
        system_prompt(task.env)
        if task.env == SHELL_ENV:
            _check_info(task.info)
            seed = parse_seed(task.info, where)
            assertions = parse_assertions(task.info, where)
            faults += assertion_faults(assertions, seed, _binary_paths(task.info))
    except BadInput as e:
        faults.append(_without(where, e))
    return faults


_TYPES: Mapping[str, type] = {
    "persona": str,
    "intent": str,
    "skills_required": list,
    "difficulty": str,
    "estimated_steps": int,
}


def _check_info(info: Mapping[str, Any]) -> None:
    for key, kind in _TYPES.items():
        if key not in info:
            raise BadInput(f"info.{key} is missing")
        if not isinstance(info[key], kind):
            raise BadInput(f"info.{key}: expected {kind.__name__}, found {info[key]!r:.60}")
    if info["difficulty"] not in DIFFICULTIES:
        known = ", ".join(DIFFICULTIES)
        raise BadInput(f"info.difficulty: {info['difficulty']!r} is unknown; known: {known}")


def _binary_paths(info: Mapping[str, Any]) -> set[str]:
    return {f["path"] for f in info["workspace_seed"]["files"] if f["kind"] == "binary"}


def assertion_faults(
    assertions: Sequence[Assertion], seed: Mapping[str, bytes], binary: set[str]
) -> list[str]:
    """Assertions that nothing can make true, alone or together, and patterns that must not run.

    seed: the workspace's files, path -> bytes; binary: those of them that are no text.
    """
    faults: list[str] = []
    for a in assertions:
        faults += _binary_fault(a, binary)
        if a.regex and (fault := regex_fault(a.regex)):
            faults.append(f"{a.path}: {fault}")
    faults += _existence_faults(assertions)
    faults += _unchanged_faults(assertions, seed)
    faults += _contents_faults(assertions)
    return faults


def _binary_fault(assertion: Assertion, binary: set[str]) -> list[str]:
    of_text = (AssertionKind.FILE_CONTENTS_CONTAIN, AssertionKind.FILE_CONTENTS_MATCH_REGEX)
    if assertion.path in binary and assertion.kind in of_text:
        return [
            f"{assertion.kind} over the binary stub {assertion.path}: no text can be found in it"
        ]
    return []


def _existence_faults(assertions: Sequence[Assertion]) -> list[str]:
    """Files that must be there against files that must not, and files against folders."""
    absent = {a.path for a in assertions if a.kind is AssertionKind.FILE_NOT_EXISTS}
    needed = {a.path: a.kind for a in assertions if a.kind is not AssertionKind.FILE_NOT_EXISTS}
    faults = [
        f"nothing can make it true: {kind} and file_not_exists of {path}"
        for path, kind in needed.items()
        if path in absent
    ]
    for path, kind in needed.items():
        for parent in map(str, Path(path).parents):
            if parent in absent:
                faults.append(
                    f"nothing can make it true: {kind} of {path}, but file_not_exists of {parent}"
                )
            if parent in needed:
                faults.append(
                    f"nothing can make it true: {parent} must be a file and the folder of {path}"
                )
    return faults


def _unchanged_faults(assertions: Sequence[Assertion], seed: Mapping[str, bytes]) -> list[str]:
    """What is said of a file that must stay as it is has to hold from the start."""
    faults: list[str] = []
    for one, other in combinations(assertions, 2):
        if one.path != other.path:
            continue
        for kept, claim in ((one, other), (other, one)):
            if kept.kind is AssertionKind.FILE_UNCHANGED and not _holds(claim, seed[kept.path]):
                faults.append(
                    f"nothing can make it true: {claim.kind} of {claim.path} does not hold in the"
                    " seed, and the file must stay unchanged"
                )
    return faults


def _contents_faults(assertions: Sequence[Assertion]) -> list[str]:
    """What is said of a file that another assertion spells out has to hold in that text."""
    faults: list[str] = []
    for one, other in combinations(assertions, 2):
        pairs = [(one, other), (other, one)] if one.path == other.path else []
        texts = ((only_texts(whole.regex), claim) for whole, claim in pairs if whole.regex)
        if any(t and not any(_holds(claim, x.encode()) for x in t) for t, claim in texts):
            faults.append(
                f"nothing can make it true: two assertions about {one.path} ask for contents that"
                " exclude each other"
            )
    return faults


def _holds(claim: Assertion, content: bytes) -> bool:
    """Whether a claim about contents holds; claims of other kinds are not judged here."""
    text = content.decode(errors="replace")
    if claim.kind is AssertionKind.FILE_CONTENTS_CONTAIN:
        return all(needle in text for needle in claim.must_contain)
    if claim.kind is AssertionKind.FILE_CONTENTS_MATCH_REGEX and not regex_fault(claim.regex):
        return regex.search(claim.regex, text) is not None
    return True
