"""Task files: reading them, refusing bad ones, and keeping pool and held-out set apart.

A bad task costs a night and shows only in the morning, as an assertion that never holds. So a task
file is read as a whole and checked before anything is played. All checks need only the text of the
file; the environment that a task names adds its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from fieldkit.codec import decode, encode, from_plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_raw_lines
from fieldkit.files.json_text import parse_json
from fieldkit.records import Task
from rollout.envs.registry import ENVIRONMENTS, environment_of

Shared = tuple[int, Task, int, Task, str]
"""Line and task of one file, line and task of another, and what is the same."""

MOST_ID_CHARACTERS = 200
"""Task ids appear in tables, lists and links."""


@dataclass(frozen=True)
class TaskProblem:
    """One fault of one task. where: file:line."""

    where: str
    task_id: str
    """Empty if the line could not be read as a task."""
    reason: str
    fatal: bool = True
    """The task cannot be used; false for a warning."""

    def __str__(self) -> str:
        kind = "" if self.fatal else "warning: "
        name = self.task_id.encode(errors="backslashreplace").decode()  # it may be the fault
        return f"{self.where}: {kind}{f'{name}: ' if name else ''}{self.reason}"


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Every task of a JSONL file, in file order, all of them valid.

    Raises `BadInput` with file and line of the first problem and the number of problems, and for a
    file without tasks.
    """
    return tuple(tasks_by_line(path).values())


def decode_tasks(path: Path) -> tuple[Task, ...]:
    """Every task of a file that was checked before; only decodes them.

    Checking every regular expression again takes longer than reading the file does. Raises
    `BadInput` with file and line for a task that cannot be decoded.
    """
    return tuple(decoded_by_line(path).values())


def check_tasks(path: Path) -> tuple[TaskProblem, ...]:
    """Every problem of a task file, warnings included, in file order. Raises `BadInput` only where
    there is no such file."""
    tasks, problems = _read(path)
    if not tasks and not problems:
        return (TaskProblem(f"{path}:1", "", "there is no task in the file"),)
    return tuple(problems)


def check_disjoint(pool: Path, held_out: Path) -> None:
    """Raise `BadInput` with both lines if the pool shares a task with the held-out set.

    Two tasks are the same if they have the same id, the same prompt (letter case and spaces aside)
    or the same marks of their environment (a shell task's seed files, its assertions), because
    training on one would be practice for the other. A mark that both files repeat does not count:
    it is what all of their tasks have in common, such as one set of files, or a row whose copies
    are played with seeds of their own.
    """
    _refuse_shared(pool, held_out, "held-out", shared_tasks(pool, held_out))


def check_without_final(pool: Path, final: Path) -> None:
    """The same for the final set. The pool was checked before; the set is only decoded, which takes
    a hundredth of the time. Raises `BadInput` for a set that cannot be decoded."""
    try:
        _refuse_shared(pool, final, "final", shared_tasks(pool, final, decoded_by_line))
    except (KeyError, TypeError, AttributeError) as e:
        raise BadInput(
            f"{final}: a task of it is not sound ({e!r}); `grpo tasks check {quote(str(final))}`"
            " says where"
        ) from None


def _refuse_shared(pool: Path, kept: Path, what: str, shared: Iterable[Shared]) -> None:
    for line, task, other_line, other, sign in shared:
        raise BadInput(
            f"{pool}:{line}: task {task.task_id} has the same {sign} as {what} task"
            f" {other.task_id} ({kept}:{other_line}); {what} tasks are never trained on, so"
            " remove one of them"
        )


def shared_tasks(
    pool: Path, held_out: Path, read: Callable[[Path], dict[int, Task]] | None = None
) -> Iterator[Shared]:
    """The tasks that two files share, as defined in `check_disjoint`: line and task of the pool,
    line and task of the held-out set, and what is the same. read: gives a file's tasks by line; the
    default also checks both files."""
    read = read or tasks_by_line
    theirs, ours = read(held_out), read(pool)
    common = _repeated(ours.values()) & _repeated(theirs.values())
    known = {sign: (line, task) for line, task in theirs.items() for sign in signatures(task)}
    for line, task in ours.items():
        for sign in signatures(task):
            if sign in known and sign not in common:
                yield line, task, *known[sign], sign[0]


def _repeated(tasks: Iterable[Task]) -> set[tuple[str, str]]:
    """The marks that several tasks of a file share."""
    counts = Counter(mark for task in tasks for mark in environment_of(task).marks(task))
    return {mark for mark, n in counts.items() if n > 1}


def signatures(task: Task) -> list[tuple[str, str]]:
    """What a task may not share with one of another split: (its name, its value)."""
    environment = environment_of(task)
    prompt = " ".join(task.prompt.casefold().split())
    signs = [] if environment.from_rows else [("prompt", prompt)]
    return [("task_id", task.task_id), *signs, *environment.marks(task)]


def tasks_by_line(path: Path) -> dict[int, Task]:
    """As `read_tasks`, by line number."""
    tasks, found = _read(path)
    problems = [problem for problem in found if problem.fatal]
    if problems:
        more = f" ({len(problems)} problems in all)" if len(problems) > 1 else ""
        raise BadInput(f"{problems[0]}{more}; `grpo tasks check {quote(str(path))}` lists them all")
    if not tasks:
        raise BadInput(f"{path}: there is no task in it")
    return tasks


# --- reading --------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[int, Task], list[TaskProblem]]:
    """The tasks that could be decoded, by line, and all problems."""
    tasks: dict[int, Task] = {}
    problems: list[TaskProblem] = []
    first_line: dict[str, int] = {}
    for line, raw, copy in _rows(path):
        where = f"{path}:{line}"
        try:
            task = _decode(raw, where, copy)
        except BadInput as e:
            problems.append(TaskProblem(where, "", _without(where, e)))
            continue
        if task.task_id in first_line:
            reason = f"duplicate id, first in line {first_line[task.task_id]}"
            problems.append(TaskProblem(where, task.task_id, reason))
        first_line.setdefault(task.task_id, line)
        tasks[line] = task
        faults = task_faults(task, where)
        problems += [TaskProblem(where, task.task_id, r) for r in faults]
        if not faults:
            doubts = environment_of(task).doubts(task)
            problems += [TaskProblem(where, task.task_id, r, fatal=False) for r in doubts]
    return tasks, problems


def decoded_by_line(path: Path) -> dict[int, Task]:
    """As `decode_tasks`, by line number."""
    return {line: _decode(raw, f"{path}:{line}", copy) for line, raw, copy in _rows(path)}


def _decode(raw: bytes, where: str, copy: str) -> Task:
    """One line as a task. copy: distinguishes a repeated row from its copies."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as e:
        raise BadInput(f"{where}: not UTF-8 ({e})") from None
    try:
        return decode(Task, text, where)
    except BadInput:
        line = _object(text)
        if line is None:
            raise  # `decode` says what is wrong with it
        published = _published(line)
        if published is None:
            _refuse_nameless_row(line, where)
            raise
    task = from_plain(Task, published, where)
    # The id seeds the world, so each of a thousand equal rows is a different episode.
    return replace(task, task_id=task.task_id + copy) if environment_of(task).from_rows else task


def _object(text: str) -> dict[str, Any] | None:
    """The object of a line; None for anything else."""
    try:
        line = parse_json(text, "")
    except BadInput:
        return None
    return line if isinstance(line, dict) else None


def _refuse_nameless_row(line: Mapping[str, Any], where: str) -> None:
    """Raise `BadInput` for what looks like a row of a dataset and names no known environment."""
    known = [name for name, environment in ENVIRONMENTS.items() if environment.from_rows]
    if known and not {"schema", "env", "info"} & line.keys():
        named = line.get("environment")
        what = f"environment {named!r} is unknown" if named else 'a row without "environment"'
        raise BadInput(
            f"{where}: {what}; a row of a dataset names its environment in that column; known:"
            f" {', '.join(known)}"
        )


def _published(line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The task of a line in the format of an environment's own files; None for another format."""
    read = (environment.published(line) for environment in ENVIRONMENTS.values())
    return next((fields for fields in read if fields is not None), None)


def _rows(path: Path) -> Iterator[tuple[int, bytes, str]]:
    """(line number, line, suffix that distinguishes it from equal lines); the suffix is empty for a
    line that occurs once."""
    lines = list(_lines(path))
    counts = Counter(raw for _, raw in lines)
    seen: Counter[bytes] = Counter()
    for line, raw in lines:
        seen[raw] += 1
        yield line, raw, f"-{path.stem}-{seen[raw]}" if counts[raw] > 1 else ""


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if path.is_dir():
        raise BadInput(f"{path}: this is a folder; name a task file, as in {path / 'pool.jsonl'}")
    if not path.is_file():
        raise BadInput(f"{path}: no such file; `grpo synth` writes the default task sets")
    return ((line, raw) for line, raw in read_raw_lines(path) if raw.strip())


def _without(where: str, error: BadInput) -> str:
    return str(error).removeprefix(f"{where}: ")


# --- what can be wrong with a task ----------------------------------------------------------------


def task_faults(task: Task, where: str) -> list[str]:
    """The faults of one decoded task, as reasons. where: begins the messages of errors that are
    raised."""
    try:
        encode(task).encode()
    except UnicodeEncodeError as e:
        half = e.object[e.start].encode("unicode_escape").decode()
        return [f"it holds {half}, half of a surrogate pair, which no text file can hold"]
    except ValueError:
        return ["a number in it is not finite"]
    needed = ["task_id"]
    if not (environment := ENVIRONMENTS.get(task.env)) or not environment.from_rows:
        needed.append("prompt")
    faults = [f"{key} is empty" for key in needed if not getattr(task, key).strip()]
    if not task.task_id.isprintable() or len(task.task_id) > MOST_ID_CHARACTERS:
        faults.append(f"task_id must be printable and have up to {MOST_ID_CHARACTERS} characters")
    try:
        faults += environment_of(task).faults(task, where)
    except BadInput as e:
        faults.append(_without(where, e))
    return faults
