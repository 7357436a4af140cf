"""`grpo env eval`: an adapter, or a model behind an endpoint, plays an environment; the report is
`grpo eval`'s.

An environment of a run or a preset is played with its settings there. A file or a class needs no
run; the options give its `[envs.NAME]`. Tasks come from a file or are made here. The result is an
arm that `grpo eval` plays and keeps.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldkit.errors import BadInput, NotOwner
from scripts.base.invocation import tell
from scripts.cli.arguments import (
    Ends,
    EnvName,
    EnvRun,
    Json,
    KeyFrom,
    Passes,
    Python,
    Sandbox,
    Set,
    Temperature,
    endpoint_key,
    refuse,
    typed_again,
)

if TYPE_CHECKING:
    from fieldkit.records import Task
    from rollout.envs.env_settings import EnvSettings

TASKS = 32
"""The number of tasks that are made by default."""

_OF_EPISODES: Mapping[str, Sequence[str]] = {
    "rollout": (),
    "reward": (),
    "engine": ["max_model_len"],
    "data": ["heldout"],
}
"""The settings of a run that determine the episodes and their rewards, as keys by table; no keys:
the whole table."""

_OF_AN_ADAPTER: Mapping[str, Sequence[str]] = {
    **_OF_EPISODES,
    "model": ["path", "chat_template", "chat_template_kwargs", "tool_form"],
}
"""The same for an adapter: its base, and what that is shown. Nobody here sees an endpoint's."""


def evaluate_environment(
    name: EnvName,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A server of chat completions, as http://…/v1."),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Evaluate this adapter instead.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The model's name at the endpoint (default: the only one there), or the adapter's"
            " base (smol, a folder or a hub id; default: that of --run, else smol).",
        ),
    ] = None,
    key_from: KeyFrom = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|N",
            help="A file of tasks or rows, or how many to make; default: the held-out tasks of"
            f" --run or --preset, else {TASKS}.",
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Episodes a task; default: 1.")
    ] = None,
    temperature: Temperature = None,
    passes: Passes = "",
    ends: Ends = "",
    python: Python = "",
    as_: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The environment's name in a task file.")
    ] = "",
    run: EnvRun = None,
    preset: Annotated[
        str,
        typer.Option(
            help="The preset whose limits apply without --run; NAME may be one of its envs."
        ),
    ] = "smol",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the episodes in this folder, for grpo show and compare."
        ),
    ] = None,
    set_: Set = None,
    json_: Json = False,
    sandbox: Sandbox = "bwrap",
) -> None:
    """Evaluate an environment with an adapter or a model behind an endpoint; no run is needed.

    A .py file with load_environment is a verifiers environment: its virtual environment is made if
    it is missing. http://… is the address of an OpenEnv server.

    Examples: grpo env eval my_env.py:MyEnv --passes "reward >= 1" --endpoint
    http://localhost:8000/v1 --tasks 64, or grpo env eval counter --run tonight --endpoint URL
    """
    from scripts.cli.evaluate import eval_
    from scripts.phases.single_arm import find_endpoint, require_adapter

    # Before anything is made.
    if (adapter is None) == (endpoint is None):
        raise BadInput(
            "name one: --endpoint URL or --adapter DIR; `grpo env eval --help` has an example"
        )
    if endpoint is not None:
        find_endpoint(endpoint, model, endpoint_key(key_from))
    if adapter is not None:
        refuse({"--key-from": key_from}, "goes only with --endpoint, whose key it names")
        require_adapter(adapter)
    given = [*(set_ or []), *([] if samples is None else [f"eval.samples={samples}"])]
    typed = {"passes": passes, "ends": ends, "python": python}
    own = {key: value for key, value in typed.items() if value}
    of_run = _OF_EPISODES if adapter is None else _OF_AN_ADAPTER
    target = _target(name, as_, run, preset, own, given, of_run)
    file, made = _task_file(target, tasks, out, f"{endpoint} {adapter} {model}")
    plays_now = False
    try:
        eval_(
            adapter=adapter,
            endpoint=endpoint,
            model=model if adapter is None else model or target.model,
            key_from=key_from,
            tasks=file,
            temperature=temperature,
            out=out,
            preset=preset,
            set_=target.assignments,
            json_=json_,
            sandbox=sandbox,
        )
    except NotOwner:  # the same command plays them in another terminal
        plays_now = True
        raise
    finally:
        kept = plays_now or (out is not None and (out / "run.toml").is_file())
        if made and not kept:  # the same command makes it again
            file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Target:
    """The environment to play. heldout: its default tasks; None if it has none. model: the base of
    the run's adapters; None without a run. assignments: the settings that turn the preset into
    it."""

    name: str
    settings: EnvSettings
    heldout: Path | None
    model: str | None
    assignments: list[str]


def _target(
    name: str,
    as_: str,
    run: str | None,
    preset: str,
    own: Mapping[str, str],
    given: Sequence[str],
    of_run: Mapping[str, Sequence[str]],
) -> _Target:
    """The environment that `name` means. of_run: what a run says of it, as `_OF_EPISODES`. Raises
    `BadInput`."""
    import tomllib

    from scripts.base.checkout import from_checkout
    from scripts.environments.own_env import own_environment
    from scripts.prepare.presets import run_text
    from scripts.run.config import config_of

    in_preset = tomllib.loads(run_text(preset)).get("envs", {})
    if as_ and (run or name in in_preset):
        raise BadInput("--as: goes only with a file or a class; an environment of a run has a name")
    if run:
        called, lines, heldout = name, *_of_run(name, run, of_run)
        lines += _lines(f"envs.{name}", own)
    elif name in in_preset:
        called, lines, heldout = name, _lines(f"envs.{name}", own), True
    else:
        one = own_environment(name, as_, own, typed_again("--passes", "reward >= 1"), tell)
        called, lines, heldout = one.name, _lines(f"envs.{one.name}", one.values), False
    lines += given
    config = config_of(tomllib.loads(run_text(preset, assignments=lines)), "--set")
    tasks = from_checkout(config.data.heldout) if heldout else None
    model = config.model.path if run else None
    return _Target(called, config.envs[called], tasks, model, lines)


def _lines(table: str, values: Mapping[str, Any]) -> list[str]:
    from scripts.run.assignments import toml_value

    return [f"{table}.{key}={toml_value(value)}" for key, value in values.items()]


def _of_run(name: str, run: str, wanted: Mapping[str, Sequence[str]]) -> tuple[list[str], bool]:
    """What the run's file says of the environment and of how episodes are played; and whether it
    names a held-out file. wanted: as `_OF_EPISODES`."""
    import tomllib

    from scripts.cli.env.env_named import env_of
    from scripts.run.folder import open_run

    env_of(run, name)  # raises for what is no sound file
    folder = open_run(run)
    tables = tomllib.loads(folder.config.read_text(encoding="utf-8"))
    lines = _lines(f"envs.{name}", tables["envs"][name])
    for table, keys in wanted.items():
        said = tables.get(table, {})
        taken = {k: said[k] for k in keys or said if k in said}
        taken.pop("concurrency", None)  # that of the run's own engine
        lines += _lines(table, taken)
    return lines, "heldout" in tables.get("data", {})


# -- the tasks -------------------------------------------------------------------------------------


def _task_file(target: _Target, asked: str | None, out: Path | None, by: str) -> tuple[Path, bool]:
    """The file of the tasks to play, and whether it was written here. by: who plays them. Raises
    `BadInput`, with nothing written."""
    from fieldkit.codec import encode
    from fieldkit.files.atomic import sha256_text, write_text
    from fieldkit.files.user_cache import cache_dir

    if asked is None and target.heldout is not None:
        text, file = None, target.heldout
    elif asked is None or re.fullmatch(r"-?\d{1,9}", asked):
        text = "".join(encode(task) + "\n" for task in _made(target, int(asked or TASKS)))
        file = None
    else:
        text, file = None, Path(asked)
    if file is not None:
        text = _of_file(target, file)
    if text is None:
        assert file is not None
        return file, False
    place = cache_dir() / "evals" / f"tasks-{sha256_text(by + text)[:16]}.jsonl"
    if out is not None:
        place = Path(f"{out}.tasks.jsonl")
        if place.exists() and place.read_text(encoding="utf-8") != text:
            raise BadInput(
                f"{place}: the tasks of another evaluation; name another folder, as in"
                f" `--out {shlex.quote(f'{out}-2')}`"
            )
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, text)
    return place, True


def _made(target: _Target, n: int) -> list[Task]:
    """`n` tasks: rows of a verifiers environment's own evaluation set, or seeds."""
    from scripts.base.checkout import ROOT
    from scripts.environments.own_env import evaluation_tasks

    if n < 1:
        raise BadInput(f"--tasks {n}: at least 1, or a file")
    return evaluation_tasks(target.name, target.settings, ROOT, n)


def _of_file(target: _Target, file: Path) -> str | None:
    """The lines of a task file that are the environment's, or its rows as tasks; None: the whole
    file is."""
    from fieldkit.codec import decode, encode
    from fieldkit.files.atomic import read_objects
    from fieldkit.records import Task
    from rollout.envs.configured import is_task
    from scripts.environments.freeze import row_tasks

    if not file.is_file():
        raise BadInput(f"--tasks {file}: no such file; a number, as in `--tasks 32`, makes tasks")
    lines = list(read_objects(file))
    if not lines:
        raise BadInput(f"{file}:1: there is no task in the file")
    if not any(is_task(line) or "environment" in line for _, line in lines):
        made = row_tasks(target.name, [line for _, line in lines], str(file))
        return "".join(encode(task) + "\n" for task in made)
    named = [str(line.get("env" if is_task(line) else "environment", "")) for _, line in lines]
    if all(env == target.name for env in named):
        return None
    kept = []
    for (where, line), env in zip(lines, named, strict=True):
        if env == target.name:
            kept.append(json.dumps(line, ensure_ascii=False) + "\n")
            if is_task(line):
                decode(Task, kept[-1], where)  # raises with the name of the file that was typed
    if not kept:
        others = ", ".join(sorted({env for env in named if env})) or "none"
        raise BadInput(
            f"{file}: no task of {target.name!r} is there; its tasks name {others}, and"
            f" `--as {others.partition(',')[0]}` gives a file or a class that name"
        )
    return "".join(kept)
