"""The pool of a run: its task file, and what was added to it from the reserve during the night.

Added tasks are files of the run folder, bound by its manifest like the task file is, so a run grows
without a change of a file that others share. The reserve is reserve.jsonl beside the pool. A person
may add tasks to the task file, too. Nothing is written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file
from fieldkit.records import Task
from reward.pool import PoolState, TaskState, pool_state
from rollout.draw.base import Drawing
from rollout.draw.rules import chances
from scripts.base.checkout import from_checkout
from scripts.run.config import DEVELOPMENT, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import task_hash
from scripts.run.manifest_shape import HELP
from scripts.run.reader import RunReader

if TYPE_CHECKING:
    from rollout.tasks import TaskProblem

GROWN = "grown"
"""The manifest's additions, in `data`: by file name sha256, n, and the step after which."""

APPENDED = "appended"
"""The tasks that were added to the task file since the start, in `data` of the manifest: by id the
step after which a rollout first met them."""

PASSED_OVER = "passed_over"
"""The tasks of the reserve that are too long for the run's context, in `data` of the manifest: of
each id a short hash of the task, so that one that was mended is looked at again."""


def last_growth(manifest: Mapping[str, Any] | None) -> int:
    """The step after which tasks last joined the pool; 0: never."""
    data = (manifest or {}).get("data", {})
    grown = [entry["step"] for entry in data.get(GROWN, {}).values()]
    return max([*grown, *data.get(APPENDED, {}).values()], default=0)


def grown_files(folder: RunFolder, manifest: Mapping[str, Any] | None) -> list[Path]:
    """The files of added tasks, oldest first. Raises `BadInput` where one was changed."""
    found = []
    for name, entry in (manifest or {}).get("data", {}).get(GROWN, {}).items():
        file = folder.path / name
        if not file.is_file() or sha256_file(file) != entry["sha256"]:
            raise BadInput(
                f"{file}: not the tasks that were added to the pool of run {folder.name}; {HELP}"
            )
        found.append(file)
    return found


def pool_tasks(
    folder: RunFolder, config: RunConfig, manifest: Mapping[str, Any] | None
) -> tuple[Task, ...]:
    """Every task of the pool, those of the task file first. They were checked before."""
    from rollout.tasks import decode_tasks  # heavy, and seldom asked

    tasks = {t.task_id: t for t in decode_tasks(from_checkout(config.data.pool))}
    for file in grown_files(folder, manifest):
        for task in decode_tasks(file):
            tasks.setdefault(task.task_id, task)  # a person may have added it to the file too
    return tuple(tasks.values())


def grown_tasks(folder: RunFolder, manifest: Mapping[str, Any] | None) -> dict[str, int]:
    """Of the reserve's tasks that joined: by id the step after which. As `grown_files`."""
    from rollout.tasks import decode_tasks

    found: dict[str, int] = {}
    for file in grown_files(folder, manifest):
        step = (manifest or {})["data"][GROWN][file.name]["step"]
        found |= {task.task_id: step for task in decode_tasks(file)}
    return found


def joined_tasks(
    manifest: Mapping[str, Any] | None, grown: Mapping[str, int], pool: Sequence[Task], now: int
) -> dict[str, int]:
    """Of the pool's tasks that the run did not begin with: by id the step after which they joined.
    grown: `grown_tasks`. now: that of tasks of which the manifest knows nothing yet."""
    data = (manifest or {}).get("data", {})
    if not (began := data.get("pool", {}).get("tasks")):
        return {}
    known = {**data.get(APPENDED, {}), **grown}
    later = (task.task_id for task in pool if task.task_id not in began)
    return {task: known.get(task, now) for task in later}


def pool_now(reader: RunReader, config: RunConfig, before: int | None = None) -> PoolState:
    """The state of the run's pool after its finished steps. before: the step to be drawn, where
    that is after one that is played and not trained yet."""
    settings = config.rollout
    sums = reader.sums.draws if before is None else reader.draws_before(before)
    pool = pool_tasks(reader.folder, config, reader.manifest)
    grown = grown_tasks(reader.folder, reader.manifest)
    drawing = Drawing(
        settings.run_seed,
        sums.step + 1,
        pool,
        batch=min(settings.tasks_per_step, len(pool)),
        group_size=settings.group_size,
        mix=config.data.mix,
        sums=sums,
        joined=joined_tasks(reader.manifest, grown, pool, sums.step),
    )
    chance = chances(settings.draw, drawing)
    return pool_state(sums, chance, config.pool, drawing.joined.keys())


# --- growth ---------------------------------------------------------------------------------------


def next_tasks(reader: RunReader, config: RunConfig) -> tuple[Task, ...]:
    """The tasks of the reserve that are to join now: as many as the task file has, if there are."""
    return candidates(reader, config)[: growth(config)]


def growth(config: RunConfig) -> int:
    """How many tasks join at a time: as many as the task file has."""
    from rollout.tasks import decode_tasks

    return len(decode_tasks(from_checkout(config.data.pool)))


def candidates(reader: RunReader, config: RunConfig, *, harder: bool = False) -> tuple[Task, ...]:
    """The tasks of the reserve that may join, in the order in which they do.

    A task that shares an id, its prompt or a mark with the pool, or with the held-out, development
    or final set, is left out, and so is one that is not sound, that the sandbox or the mix has no
    place for, or that was passed over as too long. harder: those first that are like tasks which
    still teach, or are stuck (`by_likeness`). Raises `BadInput` for a line that is no task.
    """
    from rollout.envs.registry import environment_of
    from rollout.tasks import decoded_by_line, shared_tasks, signatures

    reserve = reserve_file(config)
    if not reserve.is_file():
        return ()
    unsound = {problem.where for problem in unsound_tasks(reserve)}

    def read(file: Path) -> dict[int, Task]:
        found = decoded_by_line(file).items()
        return {line: task for line, task in found if f"{file}:{line}" not in unsound}

    pool = pool_tasks(reader.folder, config, reader.manifest)
    known = {sign for task in pool for sign in signatures(task)}
    kept = {
        task.task_id
        for other in _kept_apart(config)
        for _, task, *_ in shared_tasks(reserve, other, read)
    }
    too_long = (reader.manifest or {}).get("data", {}).get(PASSED_OVER, {})
    fresh = [
        task
        for task in read(reserve).values()
        if task.task_id not in kept
        and not known.intersection(signatures(task))
        and (not config.data.mix or task.env in config.data.mix)
        and not any(environment_of(task).fits(task, config.sandbox))
        and not (task.task_id in too_long and too_long[task.task_id] == task_hash(task))
    ]
    return tuple(by_likeness(fresh, pool, pool_now(reader, config)) if harder else fresh)


def reserve_file(config: RunConfig) -> Path:
    """Where the reserve of the run's pool is, or would be."""
    return from_checkout(config.data.pool).with_name("reserve.jsonl")


def has_reserve(config: RunConfig) -> bool:
    """Whether there is a task file that the run's pool can grow from, which is not the pool."""
    reserve, pool = reserve_file(config), from_checkout(config.data.pool)
    return reserve.is_file() and not (pool.is_file() and reserve.samefile(pool))


def require_reserve(folder: RunFolder, config: RunConfig) -> None:
    """Raise `BadInput` where the pool is to grow, and nothing is there that it could grow from."""
    reserve, wish = reserve_file(config), config.run.on_converged
    if wish == "stop" or has_reserve(config):
        return
    why, mend = "no such file", "Put one there"
    if reserve.is_file():
        why, mend = "it is the run's pool already", "Train on a smaller file beside it"
    raise BadInput(
        f'{reserve}: {why}, and run.on_converged is "{wish}": a pool grows from a task file of that'
        f' name beside it. {mend}, or leave it at "stop", which ends the night when its pool has'
        f" converged: `grpo run {folder.typed}{config.flags} --set run.on_converged=stop`"
    )


def unsound_tasks(reserve: Path) -> tuple[TaskProblem, ...]:
    """The problems of tasks that cannot be played: no other command has checked the file."""
    from rollout.tasks import check_tasks

    return tuple(problem for problem in check_tasks(reserve) if problem.fatal)


def _kept_apart(config: RunConfig) -> Iterator[Path]:
    """The task files that are never trained on."""
    data = config.data
    beside = from_checkout(data.pool).with_name(Path(DEVELOPMENT).name)
    named = [from_checkout(name) for name in (data.heldout, data.final, DEVELOPMENT) if name]
    yield from (file for file in dict.fromkeys([*named, beside]) if file.is_file())


def by_likeness(fresh: Sequence[Task], pool: Sequence[Task], state: PoolState) -> list[Task]:
    """The tasks of the reserve that are most like tasks which are not saturated first; equal ones
    in their order.

    Two tasks are alike in a feature: their template, a skill that they need, their number of skills
    or their difficulty. A feature's weight is the share of the pool's drawn tasks with it that are
    learnable, revived or stuck, counted with the share over all of them as one more task. A task is
    ordered by the mean weight of its features.
    """
    open_, drawn = defaultdict[Hashable, int](int), defaultdict[Hashable, int](int)
    for task in pool:
        found = state.tasks[task.task_id].state
        if found is TaskState.FRESH:
            continue
        for feature in (None, *_features(task)):
            drawn[feature] += 1
            open_[feature] += found is not TaskState.SATURATED
    base = open_[None] / max(1, drawn[None])

    def weight(task: Task) -> float:
        shares = [(open_[f] + base) / (drawn[f] + 1) for f in _features(task)]
        return sum(shares) / len(shares) if shares else base

    return sorted(fresh, key=weight, reverse=True)


def _features(task: Task) -> list[Hashable]:
    """What a shell task's record says of its kind; other environments may have none of it."""
    skills = [str(skill) for skill in task.info.get("skills_required", ())]
    found: list[Hashable] = [("skill", skill) for skill in skills]
    found += [("skills", len(skills))] if skills else []
    for key in ("template", "difficulty"):
        if key in task.info:
            found.append((key, str(task.info[key])))
    return found
