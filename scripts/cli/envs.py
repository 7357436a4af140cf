"""The commands for the author of an environment: check, new, list, tasks, eval, play."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldkit.errors import BadInput
from scripts.cli.arguments import (
    Ends,
    EnvName,
    EnvRun,
    Json,
    Passes,
    Python,
    refuse,
    tell,
    typed_again,
)
from scripts.cli.env_eval import evaluate_environment

if TYPE_CHECKING:
    from fieldkit.records import Task
    from rollout.envs.env_settings import EnvSettings
    from scripts.environments.order import Order

app = typer.Typer()
env_app = typer.Typer(help="Make and check an environment of your own.", no_args_is_help=True)
app.add_typer(env_app, name="env")
env_app.command("eval")(evaluate_environment)

Rows = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Rows for reset(**row), one JSON a line.")
]


@env_app.command()
def check(
    name: EnvName,
    run: EnvRun = None,
    rows: Rows = None,
    passes: Passes = "",
    ends: Ends = "",
    python: Python = "",
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="FUNCTION", help="A reward function, as rewards.py:right."),
    ] = None,
    perfect: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The calls that solve the first row at seed 0."),
    ] = None,
    endpoint: Annotated[
        str, typer.Option(metavar="URL", help="Also play with the model at this endpoint.")
    ] = "",
    model: Annotated[str, typer.Option(help="The model's name at the endpoint.")] = "",
    episodes: Annotated[int, typer.Option(min=2, help="Random episodes.")] = 32,
    turns: Annotated[int, typer.Option(min=1, help="Most calls an episode.")] = 15,
    seconds: Annotated[
        float, typer.Option(min=1, help="Time after which no further episode begins.")
    ] = 60,
    call_seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="Time limit of one call; default: 10 of a class, else 60."),
    ] = None,
    json_: Json = False,
) -> None:
    """Check an environment and play it; exit 2 if it cannot be trained on.

    NAME may be functions or a verifiers file, too; with --python an OpenEnv server's app.
    OPENAI_API_KEY holds the key of --endpoint, if it needs one.

    Examples: grpo env check my_env.py:MyEnv --passes "reward >= 1", or grpo env check
    http://localhost:8000 --passes "reward >= 1"
    """
    from rollout.envs.configured import environment
    from scripts.base.checkout import ROOT
    from scripts.base.display import progress_bar
    from scripts.environments.check_text import check_text
    from scripts.environments.env_check import check_environment
    from scripts.environments.order import read_calls
    from scripts.environments.world_check import WorldTrials, check_world

    if not endpoint:
        refuse({"--model": model or None}, "goes only with --endpoint, whose model it names")
    trial: dict[str, Any] = {
        "perfect": read_calls(perfect) if perfect else None,
        "endpoint": endpoint,
        "model": model,
        "episodes": episodes,
        "turns": turns,
        "seconds": seconds,
    }
    own = dict.fromkeys(reward or (), 1.0)
    other = _other_style(name, run, passes=passes, ends=ends, python=python)
    with progress_bar() as progress:
        if other is not None:
            settings = replace(
                other[1],
                call_seconds=call_seconds or other[1].call_seconds,
                rewards={**other[1].rewards, **own},
            )
            tasks = _tasks(other[0], settings, run, rows, episodes)
            trials = WorldTrials(environment(other[0], settings, ROOT), tasks, **trial)
            checked = check_world(name, replace(trials, wants=settings.sessions), tell, progress)
        else:
            order = _order(name, run, rows, passes, ends)
            order = replace(
                order,
                call_seconds=call_seconds or order.call_seconds,
                rewards={**order.rewards, **own},
                **trial,
            )
            checked = check_environment(order, progress)
    print(json.dumps(checked.plain(), indent=2) if json_ else check_text(checked))
    if not checked.sound:
        n = sum(f.level == "error" for f in checked.findings)
        raise BadInput(f"{name}: {n} error(s)")


@env_app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the environment.")],
    out: Annotated[Path, typer.Option(help="The folder to make it in.")] = Path(),
) -> None:
    """Write a small package: an environment's class, its test, and what a wheel needs.

    Example: grpo env new my-game
    """
    from scripts.base.invocation import say
    from scripts.environments.scaffold import write_package

    made = write_package(name, out)
    print(made.folder)
    say(f'next: `grpo env check {shlex.quote(str(made.file))} --passes "reward >= 1" --ends over`')


@env_app.command("list")
def list_(run: EnvRun = None, json_: Json = False) -> None:
    """List the environments that a task may name, with --run also those of a run.

    Example: grpo env list --run tonight
    """
    from rollout.envs.registry import ENVIRONMENTS

    own = _of_run(run) if run else {}
    found = [
        {"name": n, "style": "world", "use": e.make.__module__, "passes": ""}
        for n, e in ENVIRONMENTS.items()
        if n not in own
    ]
    found += [
        {"name": n, "style": s.style, "use": s.code, "passes": s.passes} for n, s in own.items()
    ]
    if json_:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for one in found:
        passes = f", passes: {one['passes']}" if one["passes"] else ""
        print(f"{one['name']}: {one['style']} {one['use']}{passes}")


@env_app.command()
def tasks(
    name: EnvName,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Task file to write.")],
    rows: Annotated[
        int | None, typer.Option(min=1, help="How many tasks; default: all rows of --from.")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Rows, one JSON object a line.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the first task; default: 0.")
    ] = None,
    as_: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The name of its [envs.NAME].")
    ] = "",
    run: EnvRun = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="train or eval: which dataset of a verifiers environment; default: train."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file.")] = False,
) -> None:
    """Write an environment's rows as a task file; without --from they differ only in their seed.

    The rows of a run's verifiers environment come from its own datasets.

    Example: grpo env tasks my_env.py:MyEnv --rows 200 --seed 1000 --out data/pool.jsonl
    """
    from scripts.base.checkout import ROOT
    from scripts.base.invocation import say
    from scripts.environments.freeze import dataset_tasks, row_tasks, seed_tasks, write_tasks
    from scripts.environments.order import class_of, read_rows

    again = typed_again("--force")
    if run and name in (own := _of_run(run)) and own[name].style == "verifiers":
        refuse(
            {"--from": from_, "--as": as_ or None}, f"not for {name}, which has its own datasets"
        )
        split = split or "train"
        if split not in ("train", "eval"):
            raise BadInput(f"--split {split}: train or eval")
        made = dataset_tasks(name, own[name], ROOT, split, rows or -1, seed or 0)
        write_tasks(None, made, out, force=force, again=again)
        print(f"{out}: {len(made)} tasks")
        return
    refuse({"--split": split}, "goes only with a verifiers environment of --run")
    if from_ is not None:
        refuse({"--seed": seed}, "not with --from, whose rows are taken as they are")
    order = _order(name, run)
    called = as_ or (name if run else order.use.rpartition(":")[2].lower())
    if from_ is not None:
        made = row_tasks(called, read_rows(from_)[:rows], str(from_))
        if rows is not None and len(made) < rows:
            raise BadInput(f"{from_}: it has {len(made)} rows, and --rows asks for {rows}")
    elif rows is None:
        raise BadInput("say how many tasks with --rows, or name a file of rows with --from")
    else:
        made = seed_tasks(called, rows, seed or 0)
    write_tasks(class_of(order), made, out, force=force, again=again)
    print(f"{out}: {len(made)} tasks, {made[0].task_id} to {made[-1].task_id}")
    if not run:
        passes = 'passes = "reward >= 1"'
        say(f'next: in run.toml, [envs.{called}] with use = "{order.use}" and {passes}')


@env_app.command()
def add(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="A package, a .py file, a folder or a git address."),
    ],
    also: Annotated[
        list[str] | None, typer.Option("--with", metavar="PACKAGE", help="One more requirement.")
    ] = None,
) -> None:
    """Make a virtual environment for a verifiers environment; print its lines for run.toml.

    A .py file names its requirements in inline metadata (PEP 723). The virtual environment is kept
    in the cache, so the same command is quick the second time.

    Example: grpo env add my_env.py
    """
    from scripts.environments.foreign_venv import add_environment

    made = add_environment(what, also or (), tell)
    print(made.settings, end="")  # nothing else goes to stdout: `>> run.toml`
    tell(
        f"next: add these lines to run.toml; `grpo env tasks {made.name} --run RUN --rows 64"
        " --out pool.jsonl` writes its rows as tasks"
    )


@env_app.command()
def play(
    name: EnvName,
    run: EnvRun = None,
    rows: Rows = None,
    passes: Passes = "",
    ends: Ends = "",
    python: Python = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of Python's and NumPy's generators.")] = 0,
) -> None:
    """Play an episode in the terminal; type calls as `NAME {json}` or `NAME: argument`.

    NAME may be a verifiers file, too; with --python an OpenEnv server's app.

    Examples: grpo env play my_env.py:MyEnv --seed 3, or grpo env play catch --run tonight
    """
    from scripts.environments.by_hand import play_by_hand
    from scripts.environments.instance import Broken
    from scripts.environments.order import class_of, trials_of

    other = _other_style(name, run, passes=passes, ends=ends, python=python)
    if other is not None:
        if rows is not None:
            refuse({"--seed": seed or None}, "not with --rows, whose first row decides it")
        _play_world(*other, rows, seed)
        return
    order = _order(name, run, rows, passes, ends)
    try:
        play_by_hand(trials_of(order, class_of(order)), seed, _typed(), sys.stdout)
    except Broken as e:
        raise BadInput(
            f"{e}; `grpo env check {shlex.quote(name)}` says all that is wrong"
        ) from None


def _other_style(name: str, run: str | None, **typed: str) -> tuple[str, EnvSettings] | None:
    """The name and the settings of an environment that is no class; None for a class. typed: keys
    of `[envs.NAME]`, which come before those of a run; "" where none was typed. Raises
    `BadInput`."""
    from scripts.environments.own_env import is_class, own_environment

    given: dict[str, Any] = {key: value for key, value in typed.items() if value}
    if run:
        own = _of_run(run).get(name)
        if own is None:
            return None
        if own.style != "trl":
            return name, replace(own, **given)
        refuse(
            {"--python": given.get("python")}, f"{name} of {run} is a class, which needs no other"
        )
        return None
    if is_class(name, typed["python"]):
        return None
    found = own_environment(name, "", given, typed_again("--passes", "reward >= 1"), tell)
    return found.name, found.settings


def _tasks(
    name: str, settings: EnvSettings, run: str | None, rows: Path | None, n: int
) -> list[Task]:
    """Up to `n` tasks to check with: the rows of a file, those of the run's pool, or new ones."""
    from rollout.tasks import decode_tasks
    from scripts.base.checkout import ROOT, from_checkout
    from scripts.environments.freeze import row_tasks
    from scripts.environments.order import read_rows
    from scripts.environments.own_env import evaluation_tasks
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    if rows is not None:
        return row_tasks(name, read_rows(rows)[:n], str(rows))
    pool = from_checkout(read_config(open_run(run).config).data.pool) if run else None
    own = [t for t in decode_tasks(pool) if t.env == name] if pool and pool.is_file() else []
    return own[:n] or evaluation_tasks(name, settings, ROOT, n)


def _play_world(name: str, settings: EnvSettings, rows: Path | None, seed: int) -> None:
    import tempfile

    from rollout.envs.base import Site
    from rollout.envs.configured import environment
    from rollout.sandbox.command import SandboxSettings
    from scripts.base.checkout import ROOT
    from scripts.environments.by_hand import play_world_by_hand
    from scripts.environments.freeze import row_tasks
    from scripts.environments.order import read_rows
    from scripts.environments.own_env import evaluation_tasks

    if rows is None:
        task = evaluation_tasks(name, settings, ROOT, 1, seed)[0]
    else:
        task = row_tasks(name, read_rows(rows)[:1], str(rows))[0]
    with tempfile.TemporaryDirectory() as scratch:
        site = Site(SandboxSettings(), Path(scratch), say=tell)
        made = environment(name, settings, ROOT)
        play_world_by_hand(made, task, site, _typed(), sys.stdout)


def _typed() -> Iterator[str]:
    """The lines of stdin, with a prompt if a person types them."""
    person = sys.stdin.isatty()
    while True:
        try:
            yield input("> " if person else "")
        except EOFError:
            return


def _order(
    name: str, run: str | None, rows: Path | None = None, passes: str = "", ends: str = ""
) -> Order:
    """The environment that a command has to play. Raises `BadInput`."""
    from rollout.envs.registry import ENVIRONMENTS
    from scripts.base.checkout import ROOT
    from scripts.environments.order import Order, only_class, read_rows

    given: dict[str, Any] = {"rows": read_rows(rows)} if rows else {}
    if run:
        own = _of_run(run)
        if name not in own:
            known = ", ".join(own) or "none"
            raise BadInput(f"{run}: there is no [envs.{name}] in run.toml; known: {known}")
        s = own[name]
        if s.style != "trl":
            raise BadInput(
                f"{run}: envs.{name} is of style {s.style!r}, which has no class whose rows are"
                " written here; its tasks are rows of your own, or `grpo new NAME --env` makes them"
            )
        given |= {"config": s.config, "rewards": s.rewards, "oracle": s.oracle}
        return Order(s.use, str(ROOT), passes=passes or s.passes, ends=ends or s.ends, **given)
    if passes:
        from rollout.envs.env_settings import parse_passes

        try:
            parse_passes(passes)
        except BadInput:
            raise BadInput(
                f"--passes {passes!r} compares no part of the reward with a number; write for"
                ' example `--passes "reward >= 1"`'
            ) from None
    if name in ENVIRONMENTS:
        raise BadInput(
            f"{name}: this environment is a world of its own, not a class with tools;"
            " `grpo tasks check FILE --play` plays its tasks"
        )
    if name.endswith(".py"):
        name = f"{name}:{only_class(Path(name))}"
    if ":" not in name:
        raise BadInput(
            f"{name!r} is no file, no module:Class and no registered environment"
            f" ({', '.join(ENVIRONMENTS)}); `grpo env new {shlex.quote(name)}` makes one"
        )
    return Order(name, str(Path.cwd()), passes=passes, ends=ends, **given)


def _of_run(run: str) -> Any:
    """A run's own environments by name."""
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    return read_config(open_run(run).config).envs
