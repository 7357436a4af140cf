"""The held-out tasks of stored arms, and the arms without tasks that are much like training's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.arm import tasks_sha
from rollout.synth.written import ALIKE, alike
from rollout.tasks import decode_tasks
from scripts.base.checkout import from_checkout
from scripts.evidence.stored_arm import StoredArm


def held_out_tasks(arms: Mapping[str, StoredArm]) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """Read the held-out tasks from the first run whose task file still matches.

    If no file matches, return tasks without tags, which evaluations lack, and a remark.
    """
    first = next(iter(arms.values()))
    for arm in arms.values():
        path = from_checkout(arm.manifest["data"]["heldout"]["path"])
        try:
            tasks = decode_tasks(path)
        except BadInput:
            continue
        tasks = tasks[: arm.manifest["config"]["eval"].get("tasks") or len(tasks)]
        if tasks_sha(tasks) == first.played.summary.tasks_sha:
            return tasks, ()
    ids = dict.fromkeys(t.task_id for t in first.played.trajectories)
    path = from_checkout(first.manifest["data"]["heldout"]["path"])
    return tuple(Task(task_id, "", "", {}) for task_id in ids), (
        f"{path} is gone or has changed, so nothing is shown by persona, difficulty or template.",
    )


def without_near_copies(tasks: Sequence[Task], file: Path) -> tuple[tuple[Task, ...], str]:
    """The tasks whose prompts are not much like one of the file's, and a remark on the others.

    Raises `BadInput` where prompts are not known, and where no task is left.
    """
    if not all(task.prompt for task in tasks):
        raise BadInput(
            "--unlike: the held-out tasks are not those of the runs' task file any more, or an"
            " environment writes their prompts, so nothing is known of what they are like"
        )
    near = alike(tasks, decode_tasks(file))
    kept = tuple(task for task in tasks if task.task_id not in near)
    if not kept:
        raise BadInput(f"--unlike {file}: all {len(tasks)} held-out tasks are like tasks of it")
    return kept, (
        f"{len(near)} of {len(tasks)} tasks are left out: their prompts have {100 * ALIKE:.0f} % or"
        f" more of their runs of five characters in common with one of {file}."
    )


def on_tasks(arm: StoredArm, ids: Collection[str]) -> StoredArm:
    """The arm without its attempts at other tasks."""
    kept = tuple(t for t in arm.played.trajectories if t.task_id in ids)
    return replace(arm, played=replace(arm.played, trajectories=kept))
