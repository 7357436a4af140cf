"""Synthetic tasks: operations are composed into tasks, and tasks into five splits.

A task is one to four operations on files of their own. Its difficulty is that of its hardest
operation. Pool and held-out set have ClawGym's sizes (42, 158). The reserve is what the default
night trains on, and what the pool grows by; the development set, taken from it, is for choosing
settings; the final set for one evaluation at the end. No held-out or final task shares its text,
its set of seed files or its set of assertions with another split. Some of both use an operation
that occurs nowhere else, and some final tasks a composition that occurs nowhere else. Nothing here
runs a command: `scripts.prepare.task_sets` checks in the sandbox that oracle and grader agree.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from fieldkit.records import Task
from rollout.envs.shell import SHELL_ENV
from rollout.envs.shell_tasks import DIFFICULTIES
from rollout.synth import easy, final_only, hard, middle
from rollout.synth.operation import (
    FINAL,
    HELDOUT,
    OPERATIONS,
    Draw,
    Piece,
    Registered,
    unchanged,
)
from rollout.synth.vocabulary import PERSONAS, Persona
from rollout.tasks import signatures

# Imported so that they register; used here so that no linter removes the imports.
_REGISTERED = (easy, middle, hard, final_only)

N_POOL, N_HELDOUT = 42, 158  # reference document 3
N_DRAWN, N_DEVELOPMENT = 1000, 150
"""The development set is taken from what is drawn; the reserve is the rest."""
N_FINAL = 408  # every persona 17 times in each difficulty
SPLITS = ("pool", HELDOUT, "development", "reserve", FINAL)

DEMO_SEED, N_DEMOS = 1, 1600
"""The number of demonstrations of the committed warm start."""

UNSEEN_SHARE = 0.2
"""Share of the held-out tasks with an operation that occurs nowhere else."""
FINAL_UNSEEN_SHARE, FINAL_COMPOSED_SHARE = 0.4, 0.2
"""Shares of the final tasks with an operation and with a composition that occurs nowhere else."""
KEEP_SHARE = 0.35
"""Share of tasks with a further file that must not change."""

Company = dict[str, tuple[list[tuple[str, ...]], list[float]]]
"""The further operations of a task besides the one that gives its difficulty, as (choices,
weights). The words are difficulties."""

_COMPANY: Company = {
    "easy": ([(), ("easy",), ("easy", "easy")], [0.3, 0.5, 0.2]),
    "middle": ([(), ("easy",), ("middle",)], [0.35, 0.4, 0.25]),
    "hard": ([(), ("easy",), ("middle",)], [0.5, 0.3, 0.2]),
}

_COMPOSED: Company = {
    "easy": ([("easy", "easy", "easy")], [1.0]),
    "middle": ([("middle", "easy"), ("middle", "middle")], [0.5, 0.5]),
    "hard": ([("hard",), ("hard", "easy"), ("middle", "easy")], [0.4, 0.3, 0.3]),
}
"""Further operations in a combination that no other split has, so each of these compositions is
new."""


@dataclass(frozen=True)
class Recipe:
    """What a task is drawn from. leading: the split whose own operations may give the task its
    difficulty, "" for those that every split may have. composed: its further operations are
    `_COMPOSED`."""

    leading: str = ""
    composed: bool = False


USUAL = Recipe()
Recipes = Callable[[str, random.Random], Recipe]
"""Chooses the recipe of a task of this difficulty."""


@dataclass(frozen=True)
class Plan:
    """A task with its pieces, which hold what demonstrations need."""

    task: Task
    pieces: tuple[Piece, ...]


def split_marks(task: Task) -> tuple[str, str, str]:
    """(text, names of the seed files, assertions): what two splits may not share.

    Stricter than `rollout.tasks.signatures`, which any pair of files has to satisfy: even the same
    file names with other contents may not be repeated.
    """
    files = sorted(f["path"] for f in task.info["workspace_seed"]["files"])
    claims = sorted(repr(sorted(a.items())) for a in task.info["verifiable_assertions"])
    return f"text {task.prompt}", f"files {files}", f"assertions {claims}"


def content_marks(task: Task) -> frozenset[tuple[str, str]]:
    """What any two task files may not share besides ids: `rollout.tasks.signatures`."""
    return frozenset(sign for sign in signatures(task) if sign[0] != "task_id")


def _globs_collide(pieces: list[Piece]) -> bool:
    """Whether a `*.ext` of one piece would match a file of another one."""
    for piece in pieces:
        for ext in set(re.findall(r"\*\.(\w+)", " ".join(piece.commands))):
            others = " ".join(" ".join([*p.files, *p.commands]) for p in pieces if p is not piece)
            if f".{ext}" in others:
                return True
    return False


def _operations(difficulty: str, only_in: str = "") -> list[Registered]:
    return [o for o in OPERATIONS if o.difficulty == difficulty and o.only_in == only_in]


def plan_task(
    task_id: str, difficulty: str, persona: Persona, rng: random.Random, recipe: Recipe
) -> Plan:
    """Draw one task."""
    while True:
        draw = Draw(rng, persona)
        choices, weights = (_COMPOSED if recipe.composed else _COMPANY)[difficulty]
        company = rng.choices(choices, weights)[0]
        chosen = [rng.choice(_operations(difficulty, recipe.leading))]
        for level in company:
            rest = [o for o in _operations(level) if o not in chosen]
            chosen.append(rng.choice(rest))
        rng.shuffle(chosen)
        pieces = [o.make(draw) for o in chosen]
        if not _globs_collide(pieces):
            break
    files = {path: body for piece in pieces for path, body in piece.files.items()}
    assertions = [a for piece in pieces for a in piece.assertions]
    if not files or (len(assertions) >= 3 and rng.random() < KEEP_SHARE):
        keep = draw.file("bak")
        files[keep] = f"{draw.word()}\n"
        assertions.append(unchanged(keep))
    commands = [c for piece in pieces for c in piece.commands]
    info = {
        "persona": persona.name,
        "intent": persona.intent,
        "workspace_seed": {
            "files": [{"path": p, "kind": "text", "content": c} for p, c in sorted(files.items())]
        },
        "skills_required": sorted(o.name for o in chosen),
        "verifiable_assertions": assertions,
        "difficulty": difficulty,
        "estimated_steps": len(commands),
        "oracle": commands,
        "template": "+".join(o.name for o in chosen),
        "unseen_template": recipe != USUAL,
    }
    prompt = " ".join(piece.sentence for piece in pieces)
    return Plan(Task(task_id, SHELL_ENV, prompt, info), tuple(pieces))


def _usual(difficulty: str, rng: random.Random) -> Recipe:
    return _of_heldout(difficulty, rng, 0.0)


def _of_heldout(difficulty: str, rng: random.Random, share: float = UNSEEN_SHARE) -> Recipe:
    # It has no easy operation of its own, so the other two thirds make up the share.
    return Recipe(HELDOUT) if difficulty != "easy" and rng.random() < share * 1.5 else USUAL


def _of_final(difficulty: str, rng: random.Random) -> Recipe:
    drawn = rng.random()
    if drawn < FINAL_UNSEEN_SHARE:
        return Recipe(FINAL)
    return Recipe(composed=True) if drawn < FINAL_UNSEEN_SHARE + FINAL_COMPOSED_SHARE else USUAL


@dataclass
class Splitter:
    """Makes distinct tasks. taken: marks that later tasks may not repeat. contents: marks of tasks
    whose names of seed files may be repeated."""

    seed: int
    taken: set[str] = field(default_factory=set)
    contents: set[tuple[str, str]] = field(default_factory=set)

    def plans(self, split: str, recipes: Recipes = _usual) -> Iterator[Plan]:
        """An endless sequence of tasks of `split`, difficulties and personas in turn; set by the
        seed."""
        rng = random.Random(f"{self.seed}/{split}")
        own: set[str] = set()
        counts = dict.fromkeys((p.name for p in PERSONAS), 0)
        number = 0
        while True:
            difficulty = DIFFICULTIES[number % len(DIFFICULTIES)]
            persona = PERSONAS[(number // len(DIFFICULTIES)) % len(PERSONAS)]
            recipe = recipes(difficulty, rng)
            while True:
                task_id = f"{split}-{persona.name}-{counts[persona.name]:02d}"
                plan = plan_task(task_id, difficulty, persona, rng, recipe)
                if plan.task.prompt not in own and self._is_free(plan.task):
                    break
            own.add(plan.task.prompt)
            counts[persona.name] += 1
            number += 1
            yield plan

    def _is_free(self, task: Task) -> bool:
        if not self.taken.isdisjoint(split_marks(task)):
            return False
        return not self.contents or self.contents.isdisjoint(content_marks(task))

    def reserve_marks(self, tasks: Iterable[Task]) -> None:
        """Later tasks repeat no text, file set or assertion set of `tasks`."""
        for task in tasks:
            self.taken.update(split_marks(task))

    def reserve_contents(self, tasks: Iterable[Task]) -> None:
        """The same, but names of seed files may be repeated with other contents."""
        for task in tasks:
            self.contents.update(content_marks(task))


def split_tasks(seed: int) -> dict[str, list[Plan]]:
    """The five splits by name, in the order of `SPLITS`."""
    splitter = Splitter(seed)
    heldout = _first(splitter.plans(HELDOUT, _of_heldout), N_HELDOUT)
    splitter.reserve_marks(_tasks(heldout))
    pool = _first(splitter.plans("pool"), N_POOL)
    splitter.reserve_marks(_tasks(pool))
    drawn = _first(splitter.plans("reserve"), N_DRAWN)
    demonstrated = _tasks(
        _first(demonstration_plans(DEMO_SEED, _tasks([*pool, *heldout])), N_DEMOS)
    )
    development = development_of(drawn, demonstrated)
    splitter.reserve_marks(_tasks(drawn))
    splitter.reserve_contents(demonstrated)
    final = _first(splitter.plans(FINAL, _of_final), N_FINAL)
    left_out = {task.task_id for task in _tasks(development)}
    reserve = [plan for plan in drawn if plan.task.task_id not in left_out]
    return dict(zip(SPLITS, (pool, heldout, development, reserve, final), strict=True))


def development_of(drawn: Sequence[Plan], demonstrated: Iterable[Task]) -> list[Plan]:
    """The development set: for each difficulty the last tasks of `drawn` that share no text, seed
    files or assertions with each other or with `demonstrated`. The last ones, because a pool that
    grew in the order of the file has not reached them. They keep their ids. Difficulties come in
    turn, so that the first N tasks are balanced too.
    """
    counts = Counter(mark for plan in drawn for mark in content_marks(plan.task))
    known = set(chain.from_iterable(map(content_marks, demonstrated)))
    free = [
        plan
        for plan in drawn
        if all(counts[mark] == 1 and mark not in known for mark in content_marks(plan.task))
    ]
    each = N_DEVELOPMENT // len(DIFFICULTIES)
    chosen = (
        [plan for plan in free if plan.task.info["difficulty"] == difficulty][-each:]
        for difficulty in DIFFICULTIES
    )
    return list(chain.from_iterable(zip(*chosen, strict=True)))


def demonstration_plans(
    seed: int, avoid: Iterable[Task], apart: Iterable[Task] = ()
) -> Iterator[Plan]:
    """An endless sequence of tasks for demonstrations that share nothing with `avoid` (pool and
    held-out). They may repeat the names of seed files of `apart`: development and final set were
    made after the committed demonstrations, and differ from them by contents.
    """
    splitter = Splitter(seed)
    splitter.reserve_marks(avoid)
    splitter.reserve_contents(apart)
    return splitter.plans("demo")


def _first(plans: Iterator[Plan], n: int) -> list[Plan]:
    return list(islice(plans, n))


def _tasks(plans: Iterable[Plan]) -> list[Task]:
    return [plan.task for plan in plans]
