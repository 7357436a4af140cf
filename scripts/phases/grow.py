"""The grow phase: adds tasks of the reserve to the run's pool when that has converged.

The tasks go into a file of the run folder, and count from the moment when the manifest names it. A
phase that was killed before has added nothing. No task file is changed.
"""

from __future__ import annotations

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file, write_json, write_text
from fieldkit.records import Task
from scripts.phases.checks import prompt_fits
from scripts.phases.context import Context, Done
from scripts.phases.registry import HARDER
from scripts.phases.rollout import next_step
from scripts.run.manifest import task_hash
from scripts.run.reader import RunReader
from scripts.run.run_pool import (
    GROWN,
    PASSED_OVER,
    candidates,
    growth,
    pool_now,
    reserve_file,
    unsound_tasks,
)
from scripts.words.quantities import counted


def grow(ctx: Context) -> Done:
    """Add the next tasks of the reserve; nothing while the pool still teaches.

    A task that is too long for the context is passed over, and the manifest remembers it, so that
    the night ends as converged where no other is left. Raises `BadInput` where the reserve has no
    task that may join.
    """
    step = next_step(ctx) - 1
    step += ctx.folder.has_bundle(step + 1)  # with an overlap it is drawn before step is trained
    reader = RunReader(ctx.folder)
    if not pool_now(reader, ctx.config).converged:
        return Done("the pool still teaches: no task was added")
    harder = HARDER in ctx.flags or ctx.night()[0].on_converged == HARDER
    offered = candidates(reader, ctx.config, harder=harder)
    _tell_unsound(ctx)
    if not offered:
        raise BadInput(
            f"{reserve_file(ctx.config)}: no task of it may join the pool of run"
            f" {ctx.folder.name}: the file is missing, or all its tasks are in the pool, in a set"
            " that is never trained on, not sound, or too long for the context"
        )
    tasks, too_long = _playable(ctx, offered)
    manifest = reader.manifest or {}
    data, wrote = dict(manifest["data"]), {}
    said = [f"{counted(len(tasks), 'task')} of the reserve joined the pool after step {step}"]
    if tasks:
        before = data.get(GROWN, {})
        file = ctx.folder.grown(1 + len(before))
        write_text(file, "".join(encode(task) + "\n" for task in tasks))
        sha = sha256_file(file)
        data[GROWN] = {**before, file.name: {"sha256": sha, "n": len(tasks), "step": step}}
        wrote = {ctx.folder.relative(file): sha}
    if too_long:
        hashes = {task.task_id: task_hash(task) for task in too_long}
        data[PASSED_OVER] = {**data.get(PASSED_OVER, {}), **hashes}
        said.append(f"{len(too_long)} passed over, too long for the context")
    write_json(ctx.folder.manifest, {**manifest, "data": data})
    return Done("; ".join(said), wrote)


def _playable(ctx: Context, offered: tuple[Task, ...]) -> tuple[list[Task], list[Task]]:
    """The first tasks whose prompts fit, as many as are to join, and those before them that are too
    long."""
    fits, wanted = prompt_fits(ctx), growth(ctx.config)
    found: list[Task] = []
    too_long: list[Task] = []
    for task in offered:
        (found if fits(task) else too_long).append(task)
        if len(found) == wanted:
            break
    return found, too_long


def _tell_unsound(ctx: Context) -> None:
    reserve = reserve_file(ctx.config)
    problems = unsound_tasks(reserve) if reserve.is_file() else ()
    if problems:
        more = f" ({len(problems)} problems in all)" if len(problems) > 1 else ""
        ctx.say(f"passed over: {problems[0]}{more}; `grpo tasks check {reserve}` lists them all")
