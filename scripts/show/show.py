"""`grpo show`: one attempt as the model saw it, or the list of attempts.

The attempt is read from the run's files. A random policy and the base model can be shown next to it
on the same task: the random policy is played on the spot; the base model's attempt is read from its
evaluation, or played if there is none. The run's files stay unchanged.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fieldkit.errors import BadInput
from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.envs.registry import make_world
from rollout.envs.shell import SHELL_ENV
from rollout.envs.tool_yardsticks import YARDSTICK_FORM
from rollout.sandbox.command import SandboxKind
from rollout.seeds import eval_seed
from rollout.tasks import decode_tasks
from rollout.yardsticks import RANDOM, yardstick_player
from scripts.base.checkout import from_checkout
from scripts.base.display import PlainDisplay
from scripts.base.events import note
from scripts.base.invocation import typeable
from scripts.base.signals import Wish, listening
from scripts.evidence.played import BASE
from scripts.phases.context import Context
from scripts.phases.make_player import player, serve_and_render
from scripts.prepare.model import PACKAGED, default_model_dir
from scripts.run.config import UNPROTECTED, RunConfig, read_config
from scripts.run.folder import RunFolder, open_run
from scripts.run.lock import run_lock
from scripts.run.manifest import check_host, read_manifest
from scripts.run.template import chat_renderer
from scripts.run.timings import Stopwatch, process_began
from scripts.show.attempts import Archive, Place, Played
from scripts.show.conversation import Exhibit, conversation
from scripts.show.noise import noise_of, noise_table, plain_noise
from scripts.show.tokens import TOKENIZER, read_vocabulary
from scripts.words import quantities
from scripts.words.visible import visible


@dataclass(frozen=True)
class Request:
    """What a person asked to see: at most one of step and arm; with neither, the newest place.

    run: RUN as it was typed. task: None for the list. k: None for the first attempt.
    """

    run: str
    task: str | None = None
    step: int | None = None
    arm: str | None = None
    k: int | None = None
    tokens: bool = False
    random: bool = False
    base: bool = False
    noise: bool = False
    sandbox: SandboxKind = "bwrap"

    def __post_init__(self) -> None:
        if self.noise and self.task is not None:
            raise BadInput(f"--noise is about all tasks of an arm; leave out --task {self.task}")
        if self.step is not None and self.arm is not None:
            raise BadInput(f"--step {self.step} and --eval {self.arm!r}: name one of the two")
        if self.task is None:
            for option in ("tokens", "random", "base"):
                if getattr(self, option):
                    raise BadInput(f"--{option} needs --task T; `grpo show {self.run}` lists them")
            if self.k is not None:
                raise BadInput(f"--k needs --task T; `grpo show {self.run}` lists them")


def show(request: Request, console: Console) -> None:
    """Print the requested attempt or list. Raises `BadInput` naming what exists instead."""
    folder = open_run(request.run)
    archive = Archive(folder)
    place = _place(archive, request)
    if request.noise:
        console.print(noise_table(place, noise_of(archive, place)).rich())
    elif request.task is None:
        console.print(listing(archive, place))
    else:
        _show_task(request, request.task, archive, place, console)


def _place(archive: Archive, request: Request) -> Place:
    if request.step is not None:
        return archive.step(request.step)
    if request.arm is not None:
        return archive.arm(request.arm)
    return archive.newest() if request.task is None else archive.holding(request.task)


# --- the list -------------------------------------------------------------------------------------


def listing(archive: Archive, place: Place) -> Group:
    """The list of a place's attempts: their results, and the command that shows one."""
    groups = len(place.task_ids) < len(place.attempts)
    trained = any(p.advantage is not None for p in place.attempts)
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("task", no_wrap=True)
    for name in _columns(groups, trained):
        table.add_column(name, justify="right", no_wrap=True)
    for played in place.attempts:
        table.add_row(*_row(played, groups))
    n_tasks = quantities.counted(len(place.task_ids), "task")
    return Group(
        Text(f"{archive.folder.name}, {place.name}: {n_tasks}", "bold"),
        table,
        Text(typeable(f"`{archive.command(place.option, '--task TASK')}` shows one")),
        Text(f"there are: {archive.contents()}", "dim"),
    )


def plain_listing(request: Request) -> list[dict[str, Any]] | dict[str, Any]:
    """The list of attempts, or the noise of the tasks, JSON-ready. Raises `BadInput` for a request
    of one task."""
    if request.task is not None:
        raise BadInput(f"--json prints the list of attempts; leave out --task {request.task}")
    archive = Archive(open_run(request.run))
    place = _place(archive, request)
    if request.noise:
        return plain_noise(place, noise_of(archive, place))
    return [
        {
            "task": played.trajectory.task_id,
            "k": played.trajectory.k,
            "passed": played.trajectory.grade.passed,
            "assertions": [played.trajectory.grade.n_passed, played.trajectory.grade.n_total],
            "stop": played.trajectory.stop_reason.value,
            "turns": len(played.trajectory.turns),
            "reward": played.trajectory.reward,
            "advantage": played.advantage,
        }
        for played in place.attempts
    ]


def _columns(groups: bool, trained: bool) -> tuple[str, ...]:
    """The headings after the task: the attempt's number, its end, reward and advantage."""
    k = ("k",) if groups else ()
    return (*k, "passed", "stop", "turns", "reward", *(("advantage",) if trained else ()))


def _row(played: Played, groups: bool) -> tuple[Text, ...]:
    t = played.trajectory
    passed = f"{'✓' if t.grade.passed else '✗'} {t.grade.n_passed}/{t.grade.n_total}"
    cells = [Text(visible(t.task_id))]
    cells += [Text(str(t.k))] if groups else []
    cells.append(Text(passed, "green" if t.grade.passed else "red"))
    words = [t.stop_reason.value, str(len(t.turns)), quantities.plain(t.reward, 2)]
    if played.advantage is not None:
        words.append(quantities.signed(played.advantage, 2))
    return (*cells, *map(Text, words))


# --- one task -------------------------------------------------------------------------------------


def _show_task(
    request: Request, task_id: str, archive: Archive, place: Place, console: Console
) -> None:
    k = request.k or 0
    config = read_config(archive.folder.config, request.sandbox)
    if request.sandbox == "none" and (request.random or request.base):
        console.print(Text(UNPROTECTED, "bold red"))
    played = archive.attempt(place, task_id, k)
    files = _task_files(archive.folder, config)
    task = find_task(files, task_id)
    model = model_dir(archive.folder, config)
    vocabulary = read_vocabulary(model)
    if request.tokens and vocabulary is None:
        raise BadInput(
            f"{model / TOKENIZER}: no such file, so token ids cannot be shown as text; run without"
            " --tokens, or restore the model (`grpo model` builds the default one)"
        )
    exhibits = [Exhibit(_title(place, place.of(task_id), k), played)]
    if request.random:
        # With FORCE_COLOR, Rich takes a file for a terminal and would write the spinner into it.
        turning = (
            console.status("playing a random policy") if sys.stdout.isatty() else nullcontext()
        )
        with turning:
            trajectory = play_random(config, model, _required(task, files, task_id), k)
        exhibits.append(Exhibit("a random policy", Played(trajectory), sampled=False))
    if request.base:
        exhibits.append(_base(archive, config, files, task, played))
    _check_same_grade(exhibits, files)
    page = conversation(
        task or _forgotten(files, task_id),
        exhibits,
        width=console.width,
        vocabulary=vocabulary,
        tokens=request.tokens,
    )
    console.print(page)


def _title(place: Place, attempts: Sequence[Played], k: int) -> str:
    return f"{place.name}, k = {k} of {len(attempts)}" if len(attempts) > 1 else place.name


def _base(
    archive: Archive, config: RunConfig, files: Sequence[Path], task: Task | None, beside: Played
) -> Exhibit:
    """The base model's attempt: from its evaluation, or played now if there is none."""
    t = beside.trajectory
    stored = archive.base_attempt(t.task_id, t.k)
    if stored is not None:
        return Exhibit(f"{BASE}, as evaluated", stored)
    task = _required(task, files, t.task_id)
    trajectory = play_base(archive.folder, config, task, t.k, t.sampling.temperature)
    return Exhibit(f"{BASE}, played now", Played(trajectory))


def _check_same_grade(exhibits: Sequence[Exhibit], files: Sequence[Path]) -> None:
    """Raise `BadInput` if the attempts were graded by different assertions."""
    kinds = {tuple((r.kind, r.path) for r in e.trajectory.grade.results) for e in exhibits}
    if len(kinds) > 1:
        raise BadInput(
            f"{' or '.join(map(str, files))}: the assertions of"
            f" {exhibits[0].trajectory.task_id} have changed since the run played it, so other"
            " attempts cannot be compared with it; restore the file, or leave out --random and"
            " --base"
        )


# --- what belongs to a task and a run -------------------------------------------------------------


def find_task(files: Sequence[Path], task_id: str) -> Task | None:
    """The task's record in the run's task files; None if none has it."""
    for file in files:
        if file.is_file():
            for task in decode_tasks(file):
                if task.task_id == task_id:
                    return task
    return None


def _task_files(folder: RunFolder, config: RunConfig) -> list[Path]:
    """The held-out file, the pool's, and those of tasks that joined it."""
    named = [from_checkout(config.data.heldout), from_checkout(config.data.pool)]
    return [*named, *sorted(folder.path.glob(f"{folder.grown(1).stem[:-3]}*.jsonl"))]


def _required(task: Task | None, files: Sequence[Path], task_id: str) -> Task:
    if task is None:
        raise BadInput(f"{_forgotten(files, task_id).prompt}: it cannot be played; restore it")
    return task


def _forgotten(files: Sequence[Path], task_id: str) -> Task:
    """A placeholder for a task whose record is gone; its attempt can still be shown."""
    said = " and ".join(map(str, files))
    return Task(task_id, SHELL_ENV, f"{said} have no task {task_id} any more", {})


def model_dir(folder: RunFolder, config: RunConfig) -> Path:
    """The folder from which the run's model was served; it need not exist, nothing is fetched."""
    if config.model.path in PACKAGED:
        return PACKAGED[config.model.path].folder
    manifest = read_manifest(folder)
    return default_model_dir() if manifest is None else Path(manifest["model"]["dir"])


# --- a random policy ------------------------------------------------------------------------------


def play_random(config: RunConfig, model: Path, task: Task, k: int) -> Trajectory:
    """Play one attempt of the random policy under the run's limits. With the evaluation's seeds it
    is always the same. model: its tokenizer counts the context's tokens."""
    with tempfile.TemporaryDirectory() as scratch:
        site = config.site(Path(scratch), YARDSTICK_FORM)
        player = yardstick_player(
            RANDOM,
            worlds=functools.partial(make_world, site=site),
            settings=config.rollout,
            reward=Reward(config.reward),
            load=lambda: chat_renderer(config.model, model),
        )
        return asyncio.run(player.play(task, k, functools.partial(eval_seed, task.task_id, k)))


# --- the base model -------------------------------------------------------------------------------


def play_base(
    folder: RunFolder, config: RunConfig, task: Task, k: int, temperature: float
) -> Trajectory:
    """Play one attempt of the base model on the run's engine, with the evaluation's seeds.

    The attempt is not stored, and the engine stays up. Raises `NotOwner` while a loop works on the
    run, and whatever serving and playing raise.
    """
    display = PlainDisplay(sys.stderr, details=True, phases=False)
    wish = Wish(lambda text: note(display.tell, text))
    with run_lock(folder.lock), listening(wish):
        check_host(folder, read_manifest(folder))
        ctx = Context(folder, config, display.tell, wish, Stopwatch(process_began()))
        # Serve the newest adapter too, as an evaluation does: a server without an adapter would be
        # a different one, and starting it takes a minute.
        newest = folder.finished_steps() - 1
        keep = {folder.version(newest): folder.adapter(newest)}
        servers, chat = serve_and_render(ctx, None, BASE, keep)

        async def play() -> Trajectory:
            async with player(ctx, servers, chat, config.rollout.at(temperature)) as p:
                return await p.play(task, k, functools.partial(eval_seed, task.task_id, k))

        trajectory = ctx.run_async(play())
        ctx.say(f"the engine stays up; `grpo stop {folder.typed}` ends it")
    return trajectory
