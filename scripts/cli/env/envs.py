"""The commands for the author of an environment: new, list, tasks and add, which play none, and the
others from `env_play` and `env_eval`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.errors import BadInput
from scripts.base.invocation import tell
from scripts.cli.arguments import EnvName, EnvRun, Json, print_json, refuse, typed_again
from scripts.cli.env.env_eval import evaluate_environment
from scripts.cli.env.env_play import check, play

app = typer.Typer()
env_app = typer.Typer(help="Make and check an environment of your own.", no_args_is_help=True)
app.add_typer(env_app, name="env")
env_app.command("eval")(evaluate_environment)
env_app.command()(check)
env_app.command()(play)


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
    from scripts.cli.env.env_named import envs_of

    own = envs_of(run) if run else {}
    found = [
        {"name": n, "style": "world", "use": e.make.__module__, "passes": ""}
        for n, e in ENVIRONMENTS.items()
        if n not in own
    ]
    found += [
        {"name": n, "style": s.style, "use": s.code, "passes": s.passes} for n, s in own.items()
    ]
    if json_:
        print_json(found)
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
    from scripts.cli.env.env_named import env_of, order_of
    from scripts.environments.freeze import dataset_tasks, row_tasks, seed_tasks, write_tasks
    from scripts.environments.order import class_of, read_rows
    from scripts.environments.own_env import from_anywhere

    again = typed_again("--force")
    own = env_of(run, name) if run else None
    if own is not None and own.style == "verifiers":
        refuse(
            {"--from": from_, "--as": as_ or None}, f"not for {name}, which has its own datasets"
        )
        split = split or "train"
        if split not in ("train", "eval"):
            raise BadInput(f"--split {split}: train or eval")
        made = dataset_tasks(name, own, ROOT, split, rows or -1, seed or 0)
        write_tasks(None, made, out, force=force, again=again)
        print(f"{out}: {len(made)} tasks")
        return
    refuse({"--split": split}, "goes only with a verifiers environment of --run")
    if from_ is not None:
        refuse({"--seed": seed}, "not with --from, whose rows are taken as they are")
    order = None if own is not None and own.style != "trl" else order_of(name, run)
    called = as_ or (name if run or order is None else order.use.rpartition(":")[2].lower())
    if from_ is not None:
        made = row_tasks(called, read_rows(from_)[:rows], str(from_), out.stem)
        if rows is not None and len(made) < rows:
            raise BadInput(f"{from_}: it has {len(made)} rows, and --rows asks for {rows}")
    elif rows is None:
        raise BadInput("say how many tasks with --rows, or name a file of rows with --from")
    else:
        made = seed_tasks(called, rows, seed or 0)
    write_tasks(class_of(order) if order else None, made, out, force=force, again=again)
    print(f"{out}: {len(made)} tasks, {made[0].task_id} to {made[-1].task_id}")
    if order and not run:
        home, _, kind = order.use.rpartition(":")
        use, passes = f"{from_anywhere(home)}:{kind}", 'passes = "reward >= 1"'
        say(f'next: in run.toml, [envs.{called}] with use = "{use}" and {passes}')


@env_app.command()
def add(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="A package, a wheel, a .py file, a folder or a git address."
        ),
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
