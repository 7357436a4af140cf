"""`grpo synth --author`: task files that a model writes, each task shown in the sandbox first.

A model's task may be impossible, pass by itself, or repeat another one. A task is kept if its own
commands satisfy its assertions in the environment of every rollout, if doing nothing does not, and
if its request is not much like that of a kept task or of an evaluation task. Every reply, and what
became of it, is in a journal beside the file, from which the same command goes on after a stop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from fieldkit.client import AsyncChatClient, ChatError, ChatHTTPError
from fieldkit.client.chat import BUSY
from fieldkit.codec import encode, from_plain, plain
from fieldkit.errors import BadInput, FieldkitError, Unavailable
from fieldkit.files.atomic import sha256_file, write_text
from fieldkit.files.journal import Journal
from fieldkit.records import Task
from rollout.envs.registry import environment_of
from rollout.policies import refused
from rollout.sandbox.command import SandboxSettings
from rollout.seeds import author_seed
from rollout.synth.written import (
    ALIKE,
    REPLY_SCHEMA,
    Brief,
    briefs,
    request,
    resemblance,
    shingles,
    written_task,
)
from rollout.tasks import read_tasks, signatures, task_faults
from rollout.yardsticks import DO_NOTHING, ORACLE
from scripts.base.checkout import from_checkout
from scripts.base.display import Progress
from scripts.prepare.presets import EVALUATED
from scripts.prepare.task_sets import play_yardstick, why_unsolved
from scripts.run.config import DataSettings
from scripts.run.lock import only_here

TEMPERATURE = 1.0
MOST_TOKENS = 1024
"""Of one reply."""
REPLY_SECONDS = 300.0
"""The time limit of one reply, its wait in the server's queue included."""
AT_ONCE = 16
"""Requests in flight unless a person says how many: it is somebody else's server."""
NO_SCHEMA = (400, 422)
"""Status codes of a server that does not take a JSON schema."""
OF_NO_BRIEF = (401, 403, 404, *BUSY)
"""Status codes that say nothing of the one brief that was asked for."""
TOO_MANY = 429
"""The status code of a server that is asked too often."""
REPLIES_A_TASK = 5
"""So many replies are asked for at most for each wanted task."""


class Fate(StrEnum):
    """What became of a reply."""

    KEPT = "kept"
    REFUSED = "the server gives none to its brief"
    CUT = "it was cut before its end"
    UNREADABLE = "no task could be read from it"
    UNSOUND = "a task that cannot be played"
    IDLE = "doing nothing passes it"
    UNSOLVED = "its own commands do not pass it"
    REPEATED = "much like a kept task"
    EVALUATED = "much like an evaluation task"


@dataclass(frozen=True)
class Judged:
    """A reply to one brief. why: the reason, empty for a kept task. task: None where none could be
    read."""

    brief: Brief
    fate: Fate
    why: str = ""
    task: Task | None = None


def apart_files() -> list[Path]:
    """The shell's evaluation tasks that come with the checkout, which no written task may
    resemble."""
    heldout = from_checkout(DataSettings().heldout)
    return [file for file in (heldout, *map(heldout.with_name, EVALUATED)) if file.is_file()]


@dataclass(frozen=True)
class Author:
    """A model behind chat completions at `url`."""

    url: str
    model: str
    api_key: str = field(repr=False)


@dataclass
class Authored:
    """The replies of one task file so far, by the number of their briefs: their texts, which of
    them were cut at `MOST_TOKENS`, and how they were judged."""

    file: Path
    seed: int
    texts: dict[int, str] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    judged: dict[int, Judged] = field(default_factory=dict)

    @property
    def kept(self) -> list[Task]:
        """In the order of the journal, so that what is kept later comes behind."""
        found = self.judged.values()
        return [j.task for j in found if j.task is not None and j.fate is Fate.KEPT]

    @property
    def text(self) -> str:
        """The task file."""
        return "".join(encode(task) + "\n" for task in self.kept)

    def fates(self) -> dict[Fate, tuple[int, str]]:
        """Of each fate that a reply met: how many did, and the reason of the first."""
        counts = Counter(j.fate for j in self.judged.values())
        first = {j.fate: j.why for j in reversed(self.judged.values())}
        return {fate: (counts[fate], first[fate]) for fate in Fate if fate in counts}


def author_tasks(
    author: Author,
    wanted: int,
    out: Path,
    scratch: Path,
    progress: Progress,
    say: Callable[[str], None],
    *,
    seed: int = 0,
    most: int | None = None,
    apart: Sequence[Path] = (),
    at_once: int = AT_ONCE,
) -> Authored:
    """Have tasks written until `wanted` are kept in `out`, or `most` replies were judged.

    apart: files of evaluation tasks. at_once: requests in flight. Raises `BadInput` if `out` holds
    tasks of another origin or was begun with another seed or apart from other tasks, or if the
    server refuses every request, `NotOwner` where another command writes `out`, and `Unavailable`
    where it does not answer; what came until then is kept.
    """
    most = most or REPLIES_A_TASK * wanted
    journal = Journal(out.with_name(f"{out.stem}.replies.jsonl"))
    tasks_apart = [task for file in apart for task in read_tasks(file)]
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = journal.path.with_suffix(".lock")
    with only_here(lock, f"{out}: another `grpo synth --author` writes it"):
        found = _resumed(out, seed, {str(file): sha256_file(file) for file in apart}, journal)
        judge = _Judge(found, tasks_apart, scratch, progress)
        asking = _Asking(author, seed, say, found, journal, progress)
        left = (b for b in briefs(seed) if b.number not in found.judged)
        while (missing := wanted - len(found.kept)) > 0 and (room := most - len(found.judged)) > 0:
            progress("tasks written", len(found.kept), wanted)
            batch = list(itertools.islice(left, min(at_once, room)))
            failed = asyncio.run(asking.ask([b for b in batch if b.number not in found.texts]))
            good = [(b, found.texts[b.number]) for b in batch if b.number in found.texts]
            unanswered = [Judged(b, Fate.REFUSED, str(e)) for b, e in failed if _is_of_brief(e)]
            if not (found.texts or found.judged):
                unanswered = []  # a server that has taken no request refuses more than these briefs
            for judged in (*unanswered, *judge.all(good, author.model, out.stem, missing)):
                journal.append("reply", **_entry(judged))
                found.judged[judged.brief.number] = judged
            write_text(out, found.text)
            for brief, error in failed:
                if brief.number not in found.judged:
                    raise _for_a_person(error, author)
    progress("tasks written", len(found.kept), wanted)
    return found


def _resumed(out: Path, seed: int, apart: Mapping[str, str], journal: Journal) -> Authored:
    """What an earlier start has left. apart: the hashes of the evaluation tasks' files."""
    found = Authored(out, seed)
    entries = journal.read()
    if all(entry.event == "begun" for entry in entries):  # no reply came yet
        if out.exists() and out.stat().st_size:
            raise BadInput(f"{out}: it holds other tasks; name another file with --out")
        journal.path.unlink(missing_ok=True)
        journal.append("begun", seed=seed, apart=apart)
        return found
    if entries[0].data.get("seed") != seed:
        raise BadInput(
            f"{journal.path}: it was begun with --seed {entries[0].data.get('seed')}; give that"
            " seed, or name another file with --out"
        )
    _check_apart(entries[0].data.get("apart", apart), apart, journal.path)  # absent in older ones
    try:
        replies = [entry.data for entry in entries if entry.event == "reply"]
        last = max((data["number"] for data in replies), default=-1)
        asked = list(itertools.islice(briefs(seed), last + 1))
        found.judged = {d["number"]: _judged(d, asked[d["number"]]) for d in replies}
        came = [entry.data for entry in entries if entry.event == "text"]
        found.texts = {d["number"]: str(d["text"]) for d in came}
        found.cut = {d["number"] for d in came if d.get("cut")}  # absent in older ones
    except (KeyError, TypeError, IndexError) as e:
        raise BadInput(
            f"{journal.path}: not a journal of replies ({e!r}); name another file with --out"
        ) from None
    if out.exists() and not found.text.startswith(out.read_text(encoding="utf-8")):
        raise BadInput(
            f"{out}: it is not what {journal.path} says was kept; name another file with --out"
        )
    write_text(out, found.text)  # the journal may be ahead of it
    return found


def _check_apart(begun: Mapping[str, str], now: Mapping[str, str], journal: Path) -> None:
    """Raise `BadInput` unless what is kept from now on is held against the same evaluation tasks as
    what was kept before."""
    for file, sha in begun.items():
        if sha not in now.values():
            raise BadInput(
                f"{journal}: it was begun apart from the tasks of {file}, which are not given or"
                f" have changed; add --apart {file} as it was, or name another file with --out"
            )
    for file, sha in now.items():
        if sha not in begun.values():
            raise BadInput(
                f"{journal}: it was begun without --apart {file}, so what was kept may resemble"
                " those tasks; leave it out, or name another file with --out"
            )


def _entry(judged: Judged) -> dict[str, Any]:
    task = None if judged.task is None else plain(judged.task)
    return {
        "number": judged.brief.number,
        "fate": judged.fate.name,
        "why": judged.why,
        "task": task,
    }


def _judged(data: dict[str, Any], brief: Brief) -> Judged:
    task = None if data["task"] is None else from_plain(Task, data["task"], "task")
    return Judged(brief, Fate[data["fate"]], data["why"], task)


@dataclass
class _Asking:
    """Asks for the tasks of briefs, by a JSON schema where the server takes one. A text is in the
    journal as soon as it is here."""

    author: Author
    seed: int
    say: Callable[[str], None]
    found: Authored
    journal: Journal
    progress: Progress
    by_schema: bool = True
    takes_schema: bool = False

    async def ask(self, wanted: Sequence[Brief]) -> list[tuple[Brief, ChatError]]:
        """Ask for all at once; those that got no text, and why."""
        client = AsyncChatClient(
            self.author.url, self.author.model, self.author.api_key, timeout=REPLY_SECONDS
        )
        async with client:
            failed = await self._all(client, wanted)
            no_schema = [e for _, e in failed if _status(e) in NO_SCHEMA]
            if self.by_schema and not self.takes_schema and len(no_schema) == len(wanted) > 0:
                self.say(f"the server takes no JSON schema; the model is only told: {no_schema[0]}")
                self.by_schema = False
                failed = await self._all(client, wanted)
        return failed

    async def _all(
        self, client: AsyncChatClient, wanted: Sequence[Brief]
    ) -> list[tuple[Brief, ChatError]]:
        n_here = 0

        async def one(brief: Brief) -> ChatError | None:
            nonlocal n_here
            failed = await self._text(client, brief)
            n_here += 1
            self.progress("replies of the author", n_here, len(wanted))
            return failed

        errors = await asyncio.gather(*map(one, wanted))
        return [(b, e) for b, e in zip(wanted, errors, strict=True) if e is not None]

    async def _text(self, client: AsyncChatClient, brief: Brief) -> ChatError | None:
        schema = {"name": "task", "schema": REPLY_SCHEMA, "strict": True}
        form = {"response_format": {"type": "json_schema", "json_schema": schema}}
        try:
            answer = await client.chat(
                request(brief),
                max_tokens=MOST_TOKENS,
                temperature=TEMPERATURE,
                seed=author_seed(self.seed, brief.number),
                **(form if self.by_schema else {}),
            )
            choice = answer["choices"][0]
            text = str(choice["message"]["content"] or "")
        except ChatError as e:
            return e
        except (KeyError, IndexError, TypeError):
            return _NoMessage(f"{self.author.url}: the answer holds no message")
        cut = choice.get("finish_reason") == "length"
        self.journal.append("text", number=brief.number, text=text, cut=cut)
        self.found.texts[brief.number] = text
        if cut:
            self.found.cut.add(brief.number)
        self.takes_schema = self.by_schema
        return None


class _NoMessage(ChatError):
    """An answer without a message."""


def _status(error: ChatError) -> int | None:
    return error.status_code if isinstance(error, ChatHTTPError) else None


def _is_of_brief(error: ChatError) -> bool:
    """Whether the server answers, but not to this brief: a content filter refuses one, say."""
    status = _status(error)
    if status is None:
        return isinstance(error, _NoMessage)
    return 400 <= status < 500 and status not in OF_NO_BRIEF


def _for_a_person(error: ChatError, author: Author) -> FieldkitError:
    """A failure that ends the command, with what to do about it."""
    known = refused(error, author.model) if isinstance(error, ChatHTTPError) else None
    if isinstance(known, BadInput) and _status(error) not in BUSY:
        return BadInput(f"{known}; what came until then is kept")
    fewer = "; --at-once 1 asks for one reply at a time" if _status(error) == TOO_MANY else ""
    return Unavailable(f"{error}; what came is kept, and the same command goes on{fewer}")


@dataclass
class _Judge:
    """Judges replies in the order of their briefs."""

    found: Authored
    apart: Sequence[Task]
    scratch: Path
    progress: Progress

    def __post_init__(self) -> None:
        self._evaluated = [shingles(task.prompt) for task in self.apart]
        self._signs = {sign for task in self.apart for sign in signatures(task)}

    def all(
        self, replies: Sequence[tuple[Brief, str]], author: str, prefix: str, missing: int
    ) -> Iterator[Judged]:
        """What becomes of each reply; of the last ones nothing once `missing` are kept."""
        read = [self._read(brief, reply, author, prefix) for brief, reply in replies]
        played = self._play([j for j in read if j.fate is Fate.KEPT])
        kept = [shingles(task.prompt) for task in self.found.kept]
        for judged in read:
            after = self._compare(played.get(judged.brief.number, judged), kept)
            if after.fate is Fate.KEPT and after.task is not None:
                kept.append(shingles(after.task.prompt))
                missing -= 1
            yield after
            if missing == 0:
                return

    def _read(self, brief: Brief, reply: str, author: str, prefix: str) -> Judged:
        """KEPT if nothing speaks against it so far."""
        try:
            task = written_task(brief, reply, author, prefix)
        except BadInput as e:
            if brief.number in self.found.cut:
                return Judged(brief, Fate.CUT, f"at {MOST_TOKENS:,} tokens")
            return Judged(brief, Fate.UNREADABLE, str(e))
        faults = task_faults(task, "task")
        if not faults:
            faults = [*environment_of(task).fits(task, SandboxSettings())]
        if faults:
            return Judged(brief, Fate.UNSOUND, faults[0], task)
        return Judged(brief, Fate.KEPT, "", task)

    def _play(self, sound: Sequence[Judged]) -> dict[int, Judged]:
        """What doing nothing and the oracle say, by the brief's number."""
        tasks = [j.task for j in sound if j.task is not None]
        if not tasks:
            return {}
        idle, solved = (
            play_yardstick(name, tasks, self.scratch, "playing what was written", self.progress)
            for name in (DO_NOTHING, ORACLE)
        )
        found = {}
        for judged, nothing, oracle in zip(sound, idle, solved, strict=True):
            after = judged
            if nothing.grade.passed:
                after = replace(judged, fate=Fate.IDLE)
            elif why := why_unsolved(oracle.grade):
                after = replace(judged, fate=Fate.UNSOLVED, why=why)
            found[judged.brief.number] = after
        return found

    def _compare(self, judged: Judged, kept: Sequence[frozenset[str]]) -> Judged:
        if judged.task is None or judged.fate is not Fate.KEPT:
            return judged
        mine = shingles(judged.task.prompt)
        for fate, others in ((Fate.EVALUATED, self._evaluated), (Fate.REPEATED, kept)):
            closest = max((resemblance(mine, other) for other in others), default=0.0)
            if closest >= ALIKE:
                return replace(judged, fate=fate, why=f"resemblance {closest:.2f}")
        shared = next((sign for sign in signatures(judged.task) if sign in self._signs), None)
        if shared is not None:
            return replace(judged, fate=Fate.EVALUATED, why=f"the same {shared[0]}")
        return judged
