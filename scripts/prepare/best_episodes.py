"""The best episodes of a run, or of a stored evaluation, as demonstrations for a warm start.

Only finished steps and finished evaluations are read, so the run may continue meanwhile. Episodes
of held-out tasks are never taken, because an adapter trained on them would be evaluated on the same
tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.codec import bundle_groups, stored_trajectories
from fieldkit.errors import BadInput
from fieldkit.files.sharded import sha256_records, stored
from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.arm import SUMMARY, read_eval, tasks_sha, transcripts
from rollout.envs.registry import ENVIRONMENTS
from rollout.tasks import decode_tasks, read_tasks, shared_tasks
from rollout.transcript import ChatRenderer
from scripts.base.checkout import from_checkout
from scripts.base.display import Progress, silent
from scripts.prepare.endpoint_ids import with_ids
from scripts.prepare.presets import held_out_files
from scripts.run.config import DataSettings, RunConfig, read_config
from scripts.run.folder import RunFolder
from scripts.run.manifest import model_hashes, read_manifest
from scripts.run.reader import RunReader

HELD_OUT = "of held-out tasks"
NOT_PASSED = "not passed"
OTHERWISE = "of an endpoint, for which a replay of the replies got other answers"
REPEATED = "with the same replies as a better episode"
BEYOND = "beyond the limit for a task"
ENDPOINT = "endpoint"
"""The only "file" of an endpoint's model: its manifest has the hash of the address."""


@dataclass(frozen=True)
class Source:
    """A folder with stored episodes, and the model in its manifest."""

    folder: RunFolder
    config: RunConfig
    model: Mapping[str, Any]

    @property
    def is_arm(self) -> bool:
        return self.config.is_one_arm

    @property
    def has_ids(self) -> bool:
        """Whether its episodes were sampled here, as token ids."""
        return ENDPOINT not in self.model["files"]


@dataclass(frozen=True)
class Chosen:
    """The episodes to learn from, best first in each task, and their origin."""

    demos: tuple[Trajectory, ...]
    origin: dict[str, Any]
    """JSON-ready: run, steps, the files' hashes, the tasks, and how many episodes were left out for
    which reason."""

    @property
    def told(self) -> str:
        """The same in one line."""
        n_tasks = len(self.origin["tasks"])
        left = [f"{n} {why}" for why, n in self.origin["left_out"].items()]
        return (
            f"{len(self.demos)} episodes of {n_tasks} tasks from {self.origin['run']}; left out: "
            f"{', '.join(left) or 'none'}"
        )


def find_source(folder: RunFolder) -> Source:
    """The folder as a source of demonstrations. Raises `BadInput` if the run was not started."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise BadInput(
            f"{folder.path}: not started yet, so it has no episodes; `grpo run {folder.typed}`"
            " plays some"
        )
    return Source(folder, read_config(folder.config), manifest["model"])


def check_same_model(source: Source, model_dir: Path, other_weights: bool) -> None:
    """Raise `BadInput` unless ids of the source mean the same to the model in `model_dir`.

    other_weights: a person named the model, so that its weights may differ. The ids of another
    tokenizer or chat template are never learned. Text of an endpoint fits every model.
    """
    if not source.has_ids:
        return
    here = model_hashes(model_dir)
    there = {name: sha for name, sha in source.model["files"].items() if name in here}
    differ = sorted(name for name in here if there.get(name) != here[name])
    if other_weights:
        differ = [n for n in differ if not n.endswith(".safetensors") and n != "config.json"]
    if differ:
        raise BadInput(
            f"{source.folder.path}: played by {source.model['dir']}, whose {', '.join(differ)} is"
            f" not that of {model_dir}, so its token ids cannot be learned; `grpo sft OUT --from"
            f" {source.folder.typed} --model FOLDER` names the model that played it"
        )


def choose(source: Source, model_dir: Path, per_task: int, progress: Progress = silent) -> Chosen:
    """At most `per_task` passed episodes of every task: by reward, then by fewer turns.

    The reward is that of the keys of the source's [reward]: one that `reward.schedule` made says
    how early the episode was played. Raises `BadInput` where nothing is left, and for a file that
    cannot be read or was changed.
    """
    stored = _Stored(source, progress)
    left_out: Counter[str] = stored.left_out
    forbidden = _held_out(source)
    tasks = {} if source.has_ids else _tasks_as_played(source)
    paid = Reward(source.config.reward).paid
    passed: dict[str, list[Trajectory]] = {}
    for episode in stored.episodes():
        if episode.task_id in forbidden:
            left_out[HELD_OUT] += 1
        elif not episode.grade.passed or not episode.turns:
            left_out[NOT_PASSED] += 1
        else:
            passed.setdefault(episode.task_id, []).append(episode)
    demos = []
    for task_id in sorted(passed):
        ranked = _distinct(sorted(passed[task_id], key=lambda e: (-paid(e).reward, len(e.turns))))
        left_out[REPEATED] += len(passed[task_id]) - len(ranked)
        left_out[BEYOND] += len(ranked[per_task:])
        demos += ranked[:per_task]
    if tasks and demos:
        kept = with_ids(source.config, tasks, demos, ChatRenderer(model_dir), progress)
        left_out[OTHERWISE] += len(demos) - len(kept)
        demos = kept
    left = {why: n for why, n in left_out.items() if n}
    if not demos:
        raise BadInput(_nothing(source, left))
    origin = {
        "run": source.folder.name,
        "played_by": source.model["dir"],
        "steps": stored.steps,
        "files": stored.files,
        "per_task": per_task,
        "tasks": sorted({demo.task_id for demo in demos}),
        "left_out": left,
    }
    return Chosen(tuple(demos), origin)


def _nothing(source: Source, left: Mapping[str, int]) -> str:
    counted = ", ".join(f"{n} {why}" for why, n in left.items()) or "it has none"
    more = (
        "`grpo eval --help` shows how an adapter or an endpoint plays tasks that may be trained on"
        if source.is_arm
        else f"`grpo show {source.folder.typed}` shows its episodes, `grpo run"
        f" {source.folder.typed}` plays more"
    )
    return f"{source.folder.path}: no episode to learn from ({counted}); {more}"


def _distinct(ranked: Sequence[Trajectory]) -> list[Trajectory]:
    """Episodes whose replies differ from all earlier ones; a certain policy gives the same K
    times."""
    first: dict[tuple[str, ...], Trajectory] = {}
    for episode in ranked:
        first.setdefault(tuple(turn.text for turn in episode.turns), episode)
    return list(first.values())


# --- reading --------------------------------------------------------------------------------------


class _Stored:
    """The episodes of a source, and the files that they were read from."""

    def __init__(self, source: Source, progress: Progress) -> None:
        self._source, self._progress = source, progress
        self.steps: list[int] = []
        self.files: dict[str, str] = {}
        """SHA-256 by path in the run."""
        self.left_out: Counter[str] = Counter()

    def episodes(self) -> Iterator[Trajectory]:
        """In the order in which they were played. Raises as `choose`."""
        return self._of_arms() if self._source.is_arm else self._of_steps()

    def _of_steps(self) -> Iterator[Trajectory]:
        folder = self._source.folder
        for arm in (*folder.evals.glob(f"*/{SUMMARY}"), *folder.training_evals.glob("*/eval.json")):
            self.left_out[HELD_OUT] += read_eval(arm.parent).n_trajectories
        trained = RunReader(folder).steps[1:]
        for step in trained:
            self._progress("steps read", step.step, len(trained))
            file = folder.bundle(step.step)
            if stored(file) is None:
                continue
            self._enter(file, step.bundle_sha)
            self.steps.append(step.step)
            for group in bundle_groups(file):
                yield from group.trajectories
        if not self.steps:
            why = "this copy of the run has no bundles" if trained else "no step is finished yet"
            raise BadInput(
                f"{folder.path}: {why}, so there is no episode to learn from; `grpo run"
                f" {folder.typed}` plays it, where its weights are"
            )

    def _of_arms(self) -> Iterator[Trajectory]:
        folder = self._source.folder
        arms = sorted(folder.evals.glob(f"*/{SUMMARY}"))
        if not arms:
            raise BadInput(
                f"{folder.path}: its evaluation is not finished; the same `grpo eval` command"
                " continues it"
            )
        for arm in arms:
            file = transcripts(arm.parent)
            self._enter(file, None)
            yield from stored_trajectories(file)

    def _enter(self, file: Path, expected: str | None) -> None:
        found = sha256_records(file)
        folder = self._source.folder
        if expected is not None and found != expected:
            raise BadInput(
                f"{file}: not as it was written (SHA-256 {found[:12]}, step.json says"
                f" {expected[:12]}); put the file back, or move it away to leave the step out"
            )
        self.files[folder.relative(file)] = found


def _tasks_as_played(source: Source) -> dict[str, Task]:
    """The tasks of an arm by id. Raises `BadInput` where its file is gone or was changed."""
    file = from_checkout(source.config.data.pool)
    tasks = source.config.eval.of(read_tasks(file))
    for arm in source.folder.evals.glob(f"*/{SUMMARY}"):
        if read_eval(arm.parent).tasks_sha != tasks_sha(tasks):
            raise BadInput(
                f"{file}: not the tasks that {source.folder.path} was played on, so what its model"
                " was shown cannot be told; put the file back as it was"
            )
    return {task.task_id: task for task in tasks}


def _held_out(source: Source) -> set[str]:
    """The ids of tasks that are never learned from. An arm's tasks are those that a person named,
    and no held-out set of their own."""
    pool = from_checkout(source.config.data.pool)
    return set().union(*held_out(source.config, pool, is_arm=source.is_arm).values())


def held_out(config: RunConfig, pool: Path, *, is_arm: bool = False) -> dict[Path, set[str]]:
    """By each file of tasks that are never learned from, the run's own and those of the shipped
    presets: their ids, and those of tasks of `pool` that share a thing with one. is_arm: the run
    is an evaluation, so that its held-out file is the tasks it played."""
    named = {DataSettings().heldout, *held_out_files()}
    if config.data.final:
        named.add(config.data.final)
    if not is_arm:
        named.add(config.data.heldout)
    found: dict[Path, set[str]] = {}
    for file in map(from_checkout, sorted(named)):
        if file.is_file():
            tasks = decode_tasks(file)
            found[file] = {task.task_id for task in tasks}
            # What tasks of a preset's environment share can be told where it is known.
            if pool.is_file() and all(task.env in ENVIRONMENTS for task in tasks):
                found[file] |= {task.task_id for _, task, *_ in shared_tasks(pool, file)}
    return found
