"""The commands that make and check task files."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldkit.errors import BadInput
from scripts.cli.arguments import Json, KeyFrom, endpoint_key, print_json, refuse

if TYPE_CHECKING:
    from rollout.tasks import TaskProblem
    from scripts.prepare.authoring import Authored

app = typer.Typer()
tasks_app = typer.Typer(help="Check task files.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")

_UNKNOWN_ENV = re.compile("env '.*' is unknown; ")


@app.command()
def synth(
    seed: Annotated[int, typer.Option(help="Seed of the task generator.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to; default: the checkout's data. With --author: a file."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files with other tasks.")] = False,
    author: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Have a model behind chat completions write the tasks."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Which of the author's models, if it serves several.")
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="How many tasks the author should write; default: 50."
        ),
    ] = None,
    replies: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Judge at most so many replies; default: 5 a task."),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Ask for so many replies at a time; default: 16."),
    ] = None,
    apart: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Evaluation tasks that no written task may resemble."),
    ] = None,
    key_from: KeyFrom = None,
    json_: Json = False,
) -> None:
    """Write the five default task files; check every task in the sandbox.

    The files are pool, heldout, development, reserve and final; see `docs/running.md`. With
    --author a model writes tasks into one file; those that it solves itself, that doing nothing
    does not pass, and that resemble no other and no evaluation task (of this checkout, or of
    --apart) are kept.

    Example: grpo synth --seed 7 --out data/more

    Example: grpo synth --author http://localhost:8000/v1 --tasks 100 --out data/written.jsonl
    """
    import tempfile

    from scripts.base.checkout import from_checkout
    from scripts.base.display import progress_bar
    from scripts.phases.single_arm import find_endpoint
    from scripts.prepare.authoring import AT_ONCE, Author, apart_files, author_tasks
    from scripts.prepare.task_sets import write_splits

    if author is not None:
        if out is None:
            raise BadInput("--out: name the file that the author's tasks go into")
        refuse({"--force": force}, "goes only without --author, which replaces no file")
        tasks = tasks or 50
        found, _ = find_endpoint(author, model, endpoint_key(key_from))
        files = [*apart_files(), *(apart or [])]
        with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
            authored = author_tasks(
                Author(found.url, found.model, found.api_key),
                tasks,
                out,
                Path(scratch),
                progress,
                lambda text: print(text, file=sys.stderr),
                seed=seed,
                most=replies,
                apart=files,
                at_once=at_once or AT_ONCE,
            )
        given = {"--author": author, "--model": model, "--key-from": key_from, "--seed": seed}
        given |= {"--at-once": at_once}
        typed = [word for flag, value in given.items() if value for word in (flag, str(value))]
        typed += [word for file in apart or () for word in ("--apart", str(file))]
        _tell(authored, shlex.join(typed), tasks, json_)
        return
    of_author = {"--model": model, "--tasks": tasks, "--replies": replies, "--apart": apart}
    of_author |= {"--key-from": key_from, "--at-once": at_once}
    refuse(of_author, "goes only with --author, whose tasks it is about")
    folder = out or from_checkout("data")
    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        sizes = write_splits(seed, folder, Path(scratch), progress, force)
    if json_:
        print_json({str(folder / f"{name}.jsonl"): n for name, n in sizes.items()})
        return
    print(", ".join(f"{folder / name}.jsonl: {n} tasks" for name, n in sizes.items()))


def _tell(authored: Authored, typed: str, wanted: int, json_: bool) -> None:
    """Print what became of the replies. typed: the author and what it was told. Raises `BadInput`
    for fewer tasks than were wanted."""
    from rich.console import Console

    from scripts.words.quantities import percent
    from scripts.words.table import Table

    n, kept = len(authored.judged), len(authored.kept)
    rows = [
        (fate.value, str(count), percent(count / n), why)
        for fate, (count, why) in authored.fates().items()
    ]
    table = Table(f"{n} replies", ("reply", "number", "share", "such as"), tuple(rows))
    if json_:
        told = {"file": str(authored.file), "kept": kept, **table.plain()}
        print_json(told)
    else:
        Console().print(table.rich())
        print(f"{authored.file}: {kept} tasks")
    if kept < wanted:
        out = shlex.quote(str(authored.file))
        more = f"{typed} --tasks {wanted} --out {out} --replies {2 * n}"
        raise BadInput(
            f"{kept} of {wanted} tasks were kept, of {n} replies; `grpo synth {more}` asks for more"
        )


@tasks_app.command("check")
def tasks_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Tasks, one JSON record per line.")],
    play: Annotated[
        bool, typer.Option("--play", help="Play do-nothing and, where there is one, the oracle.")
    ] = False,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Also accept the environments of this run.toml."),
    ] = None,
) -> None:
    """Report every bad task as file:line with the reason; exit 2 if there is one.

    Example: grpo tasks check data/pool.jsonl --play
    """
    import tempfile

    from rollout.sandbox.command import SandboxSettings
    from rollout.tasks import check_tasks, tasks_by_line
    from scripts.base.display import progress_bar
    from scripts.prepare.task_check import misfits
    from scripts.prepare.task_check import play as play_tasks
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    # Its [envs] are registered, and its limits apply.
    config = read_config(open_run(run).config) if run else None
    sandbox = SandboxSettings() if config is None else config.sandbox
    problems, said = list(check_tasks(file)), ""
    if not any(p.fatal for p in problems):
        tasks = tasks_by_line(file)
        problems += misfits(file, tasks, sandbox)
        if play and not any(p.fatal for p in problems):
            with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
                found, said = play_tasks(file, tasks, Path(scratch), progress, config)
            problems += found
    for line in _told(problems):
        print(line)
    if said:
        print(f"{file}: {said}")
    n_fatal = sum(p.fatal for p in problems)
    if n_fatal:
        again = f"grpo tasks check {shlex.quote(str(file))} --run RUN"
        more = "" if run else f"; `{again}` knows the [envs] of a run too"
        if any(not p.task_id for p in problems):  # no task could be read from the line
            more += "; docs/running.md shows the form of a task (Your own tasks)"
        raise BadInput(f"{file}: {n_fatal} problem(s){more}")
    n_warnings = len(problems)
    print(f"{file}: every task is sound{f' ({n_warnings} warnings)' if n_warnings else ''}")


def _told(problems: Sequence[TaskProblem]) -> Iterator[str]:
    """A line a problem, and one alone for all tasks of an unknown environment."""
    alike = Counter(p.reason for p in problems if _UNKNOWN_ENV.match(p.reason))
    told = set()
    for problem in problems:
        if problem.reason in told:
            continue
        if n := alike[problem.reason]:
            told.add(problem.reason)
        yield f"{problem} (and so in {n - 1} more lines)" if n > 1 else str(problem)
