"""`grpo show RUN --noise`: which tasks pass, and which assertions hold, by chance of the sampling.

It needs several attempts at each task: an evaluation with `eval.samples` above 1, or a step's
rollouts, whose groups have K. The counts are those of `fieldkit.eval.task_noise`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.eval.task_noise import Held, Noise, TaskNoise, task_noise
from scripts.evidence.stored_arm import replay
from scripts.evidence.tables import percents
from scripts.run.config import read_config
from scripts.run.reader import RunReader
from scripts.show.attempts import Archive, Place
from scripts.words import quantities
from scripts.words.table import Table
from scripts.words.visible import visible

SAMPLES = 4
"""Attempts that the advice asks for: a task that passes half of the time shows it in 7 of 8."""

ORDER = (Held.BY_CHANCE, Held.NEVER, Held.ALWAYS)
"""The tasks in this order: first those that a single attempt says least about."""


def noise_of(archive: Archive, place: Place) -> Noise:
    """The noise of a place's tasks. Raises `BadInput` with the commands that play more attempts
    where it has one of each."""
    attempts: dict[str, list[Grade]] = {}
    for played in place.attempts:
        attempts.setdefault(played.trajectory.task_id, []).append(played.trajectory.grade)
    if all(len(grades) == 1 for grades in attempts.values()):
        raise BadInput(
            f"{place.path}: {place.name} has one attempt at each task, which does not tell chance"
            f" from skill; {_how_to_play_more(archive, place)}"
        )
    return task_noise(attempts)


def _how_to_play_more(archive: Archive, place: Place) -> str:
    """A command for a step that has groups; for an adapter that is here, those that play it
    again."""
    folder, sha = archive.folder, place.attempts[0].trajectory.adapter_sha
    adapters = RunReader(folder).adapters
    adapter = folder.adapter(adapters.index(sha)) if sha in adapters else None
    if adapter is not None and adapter.is_dir():
        more = f"eval.samples={SAMPLES}"
        how, arm = replay(folder, adapter, f"{folder.name}-noise", more=more)
        then = f"grpo show {arm.rpartition('@')[0]} --noise --eval warm-start"
        evaluation = f"to play {SAMPLES} attempts: {how}, then `{then}`"
    elif read_config(folder.config).is_one_arm:
        evaluation = (
            f"the `grpo eval` command that played it, with --set eval.samples={SAMPLES} and another"
            f" --out, plays {SAMPLES}"
        )
    else:
        evaluation = (
            f"a new run with eval.samples = {SAMPLES} in its run.toml plays {SAMPLES}:"
            f" `grpo new NAME --set eval.samples={SAMPLES}`"
        )
    if not archive.steps:
        return evaluation
    step = archive.command("--noise", f"--step {archive.steps[-1]}")
    return f"`{step}` shows the groups of a step of training; {evaluation}"


def noise_table(place: Place, noise: Noise) -> Table:
    """A row for each task, and the sums as notes."""
    tasks = [t for held in ORDER for t in noise.of(held)]
    return Table(
        f"Noise of the tasks: {place.name}, {noise.n} attempts at each",
        (
            "task",
            "passed",
            "always hold",
            "assertions that do not, and in how many attempts they hold",
        ),
        tuple(map(_cells, tasks)),
        tuple(summary(noise)),
    )


def _cells(task: TaskNoise) -> tuple[str, ...]:
    always = sum(a.held is Held.ALWAYS for a in task.assertions)
    others = [a for a in task.assertions if a.held is not Held.ALWAYS]
    return (
        visible(task.task_id),
        f"{task.passed} of {task.n} ({task.held})",
        f"{always} of {len(task.assertions)}",
        ", ".join(visible(f"{a.kind} {a.path}: {a.count or Held.NEVER}") for a in others),
    )


def summary(noise: Noise) -> list[str]:
    """What the counts say of all tasks, in sentences."""
    passes = {held: len(noise.of(held)) for held in Held}
    holds = {held: noise.assertions(held) for held in Held}
    twice = 1.96 * math.sqrt(2) * noise.sd
    luck = f": two such counts of one policy differ by more than {twice:.1f} in one of twenty cases"
    return [
        f"Of {quantities.counted(len(noise.tasks), 'task')} {passes[Held.ALWAYS]} always pass,"
        f" {passes[Held.NEVER]} never do, and {passes[Held.BY_CHANCE]} do by chance. Of"
        f" {sum(holds.values())} assertions {holds[Held.ALWAYS]} always hold, {holds[Held.NEVER]}"
        f" never do, and {holds[Held.BY_CHANCE]} do by chance.",
        f"At one attempt each, {noise.expected:.1f} tasks are expected to pass, with a standard"
        f" deviation of {noise.sd:.1f} from the sampling alone{luck if noise.sd else ''}.",
        f"pass@{noise.n} is the ceiling that these attempts show: {percents(noise.ceiling)} of the"
        " tasks.",
        f"A task that passed in 0 of {noise.n} attempts may still pass in up to"
        f" {quantities.percent(noise.unseen)} of further ones (95 % interval).",
    ]


def plain_noise(place: Place, noise: Noise) -> dict[str, Any]:
    """The same, JSON-ready."""
    tasks = [
        {
            **asdict(t),
            "held": t.held,
            "assertions": [{**asdict(a), "held": a.held} for a in t.assertions],
        }
        for t in noise.tasks
    ]
    return {**asdict(noise), "place": place.name, "tasks": tasks, "summary": summary(noise)}
