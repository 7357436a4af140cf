"""The grow phase: adds tasks of the reserve to the run's pool when that has converged.

The tasks go into a file of the run folder, and count from the moment when the manifest names it. A
phase that was killed before has added nothing. No task file is changed.
"""

from __future__ import annotations

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file, write_json, write_text
from fieldkit.records import Task
from rollout.tasks import read_tasks
from scripts.phases.checks import prompt_fits
from scripts.phases.context import Context, Done
from scripts.phases.registry import HARDER
from scripts.phases.rollout import next_step
from scripts.run.reader import RunReader
from scripts.run.run_pool import GROWN, next_tasks, pool_now
from scripts.words.quantities import counted


def grow(ctx: Context) -> Done:
    """Add the next tasks of the reserve; nothing while the pool still teaches.

    Raises `BadInput` where the reserve has no task that may join.
    """
    step = next_step(ctx) - 1
    reader = RunReader(ctx.folder)
    if not pool_now(reader, ctx.config).converged:
        return Done("the pool still teaches: no task was added")
    harder = HARDER in ctx.flags or ctx.config.run.on_converged == HARDER
    tasks = _playable(ctx, next_tasks(reader, ctx.config, harder=harder))
    manifest = reader.manifest or {}
    before = manifest["data"].get(GROWN, {})
    file = ctx.folder.grown(1 + len(before))
    write_text(file, "".join(encode(task) + "\n" for task in tasks))
    read_tasks(file)  # the reserve may hold what no checked file does
    sha = sha256_file(file)
    grown = {**before, file.name: {"sha256": sha, "n": len(tasks), "step": step}}
    write_json(ctx.folder.manifest, {**manifest, "data": {**manifest["data"], GROWN: grown}})
    text = f"{counted(len(tasks), 'task')} of the reserve joined the pool after step {step}"
    return Done(text, {ctx.folder.relative(file): sha})


def _playable(ctx: Context, tasks: tuple[Task, ...]) -> list[Task]:
    fits = prompt_fits(ctx)
    found = [task for task in tasks if fits(task)]
    if not found:
        reserve = ctx.pool_file.with_name("reserve.jsonl")
        raise BadInput(
            f"{reserve}: no task of it may join the pool of run {ctx.folder.name}: the file is"
            " missing, or all its tasks are in the pool, in a set that is never trained on, or too"
            " long for the context"
        )
    return found
