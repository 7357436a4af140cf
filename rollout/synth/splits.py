"""Synthetic tasks: operations composed into tasks, split into pool, held-out set and reserve.

A task is one to three operations on files of their own. Its difficulty is that of its hardest
operation. The split keeps ClawGym's sizes (42, 158) and adds a reserve for growth; no held-out task
shares its text, its set of seed files or its set of assertions with the others, and a fifth of the
held-out tasks use an operation that occurs nowhere else. Nothing here runs a command: that oracle
and grader agree is checked in the sandbox by `scripts.prepare.task_sets`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fieldkit.records import Task
from rollout.envs.shell import SHELL_ENV
from rollout.envs.shell_tasks import DIFFICULTIES
from rollout.synth import easy, hard, middle
from rollout.synth.operation import OPERATIONS, Draw, Piece, Registered, unchanged
from rollout.synth.vocabulary import PERSONAS, Persona

# Imported so that they register; named here so that no linter takes the imports away.
_REGISTERED = (easy, middle, hard)


POOL, HELDOUT, RESERVE = 42, 158, 1000  # pool and held-out: reference document 3
UNSEEN_SHARE = 0.2
"""Share of the held-out tasks that use an operation which occurs nowhere else."""
KEEP_SHARE = 0.35
"""Share of tasks with a bystander file that has to stay as it is."""

# How many further operations a task has beside the one that gives it its difficulty, as
# (choices, weights). The words are difficulties.
_COMPANY: dict[str, tuple[list[tuple[str, ...]], list[float]]] = {
    "easy": ([(), ("easy",), ("easy", "easy")], [0.3, 0.5, 0.2]),
    "middle": ([(), ("easy",), ("middle",)], [0.35, 0.4, 0.25]),
    "hard": ([(), ("easy",), ("middle",)], [0.5, 0.3, 0.2]),
}


@dataclass(frozen=True)
class Plan:
    """A task before it is written down: the pieces keep what demonstrations need."""

    task: Task
    pieces: tuple[Piece, ...]


def split_marks(task: Task) -> tuple[str, str, str]:
    """(text, names of the seed files, assertions): what two splits may not share.

    Stricter than `rollout.tasks.signatures`, which any pair of files has to satisfy: here not even
    the same file names with other contents may come back.
    """
    files = sorted(f["path"] for f in task.info["workspace_seed"]["files"])
    claims = sorted(repr(sorted(a.items())) for a in task.info["verifiable_assertions"])
    return f"text {task.prompt}", f"files {files}", f"assertions {claims}"


def _globs_collide(pieces: list[Piece]) -> bool:
    """Whether a `*.ext` of one piece would catch a file of another one."""
    for piece in pieces:
        for ext in set(re.findall(r"\*\.(\w+)", " ".join(piece.commands))):
            others = " ".join(" ".join([*p.files, *p.commands]) for p in pieces if p is not piece)
            if f".{ext}" in others:
                return True
    return False


def _operations(difficulty: str, unseen: bool) -> list[Registered]:
    return [o for o in OPERATIONS if o.difficulty == difficulty and o.held_out == unseen]


def plan_task(
    task_id: str, difficulty: str, persona: Persona, rng: random.Random, unseen: bool
) -> Plan:
    """Draw one task. `unseen`: its leading operation is one of those kept for held-out tasks."""
    while True:
        draw = Draw(rng, persona)
        choices, weights = _COMPANY[difficulty]
        company = rng.choices(choices, weights)[0]
        chosen = [rng.choice(_operations(difficulty, unseen))]
        for level in company:
            rest = [o for o in _operations(level, False) if o not in chosen]
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
        "unseen_template": unseen,
    }
    prompt = " ".join(piece.sentence for piece in pieces)
    return Plan(Task(task_id, SHELL_ENV, prompt, info), tuple(pieces))


@dataclass
class Splitter:
    """Hands out distinct tasks. `taken` holds marks that later tasks may not repeat."""

    seed: int
    taken: set[str] = field(default_factory=set)

    def plans(self, split: str, unseen_share: float = 0.0) -> Iterator[Plan]:
        """Endless tasks of `split`, difficulties and personas in turn; deterministic by seed."""
        rng = random.Random(f"{self.seed}/{split}")
        own: set[str] = set()
        counts = dict.fromkeys((p.name for p in PERSONAS), 0)
        number = 0
        while True:
            difficulty = DIFFICULTIES[number % len(DIFFICULTIES)]
            persona = PERSONAS[(number // len(DIFFICULTIES)) % len(PERSONAS)]
            # No easy operation is kept back: the other two thirds carry the share.
            unseen = difficulty != "easy" and rng.random() < unseen_share * 1.5
            while True:
                task_id = f"{split}-{persona.name}-{counts[persona.name]:02d}"
                plan = plan_task(task_id, difficulty, persona, rng, unseen)
                marks = split_marks(plan.task)
                if self.taken.isdisjoint(marks) and marks[0] not in own:
                    break
            own.add(marks[0])
            counts[persona.name] += 1
            number += 1
            yield plan

    def reserve_marks(self, tasks: Iterable[Task]) -> None:
        """From here on no task repeats a text, file set or assertion set of `tasks`."""
        for task in tasks:
            self.taken.update(split_marks(task))


def _first(plans: Iterator[Plan], n: int) -> list[Plan]:
    return [plan for plan, _ in zip(plans, range(n), strict=False)]


def split_tasks(seed: int) -> dict[str, list[Plan]]:
    """The three splits: pool (42), heldout (158) and reserve (1,000)."""
    splitter = Splitter(seed)
    heldout = _first(splitter.plans("heldout", UNSEEN_SHARE), HELDOUT)
    splitter.reserve_marks(plan.task for plan in heldout)
    pool = _first(splitter.plans("pool"), POOL)
    splitter.reserve_marks(plan.task for plan in pool)
    return {"pool": pool, "heldout": heldout, "reserve": _first(splitter.plans("reserve"), RESERVE)}


def demonstration_plans(seed: int, avoid: Iterable[Task]) -> Iterator[Plan]:
    """Endless tasks for demonstrations that share nothing with `avoid` (pool and held-out)."""
    splitter = Splitter(seed)
    splitter.reserve_marks(avoid)
    return splitter.plans("demo")
