"""`grpo new`: makes a run folder from a preset, and the tasks of a user's environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldkit.errors import BadInput
from scripts.base.invocation import tell
from scripts.cli.arguments import (
    Ends,
    Passes,
    Python,
    Run,
    Set,
    complete_run,
    refuse,
    typed_again,
)

if TYPE_CHECKING:
    from fieldkit.records import Task
    from scripts.run.config import RunConfig
    from scripts.run.folder import RunFolder

SPLITS = ("pool", "heldout")
"""The task files of a run, as `[data]` names them."""


def new(
    run: Run,
    preset: Annotated[
        str | None,
        typer.Option(
            help="smol, smol-long, spark, sql, or a file of scripts/prepare/presets; default: smol."
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="This run's settings, from the adapter that it made, with the next seed.",
            autocompletion=complete_run,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --from: that of step N; default: the newest."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Train on this environment: FILE.py, FILE.py:Class, module:Class, the address of"
            " an OpenEnv server, or with --python its app. Also writes its tasks: rows of its own"
            " datasets, or seeds.",
        ),
    ] = None,
    passes: Passes = "",
    ends: Ends = "",
    python: Python = "",
    set_: Set = None,
) -> None:
    """Create a run folder with its run.toml.

    Example: grpo new tuesday --set rollout.temperature=0.8 --set run.minutes=60

    Example: grpo new mine --env my_env.py --passes "reward >= 1" --ends over

    Example: grpo new last --from tonight --set trainer.lr=2.0 --set run.steps=20
    """
    from scripts.base.invocation import say
    from scripts.prepare.from_run import grown_elsewhere, text_from
    from scripts.prepare.presets import make_run, new_run
    from scripts.run.folder import open_run, resolve_run

    folder = resolve_run(run)
    if from_ is not None:
        of_others = {"--env": env, "--preset": preset}
        refuse(of_others, f"not with --from, which takes the settings of {from_}")
    else:
        refuse({"--step": step}, "only with --from, whose adapter it names")
    preset = preset or "smol"
    if env is not None:
        typed = {"passes": passes, "ends": ends, "python": python}
        given = {key: value for key, value in typed.items() if value}
        _with_environment(folder, env, given, preset, set_ or ())
        return
    if passes or ends or python:
        raise BadInput(
            "--passes, --ends and --python: only with --env; a preset's environments set them"
        )
    if from_ is not None:
        night = open_run(from_)
        make_run(folder, text_from(night, step, set_ or ()))
        if (left_out := grown_elsewhere(night, folder)) is not None:
            say(left_out)
    else:
        new_run(folder, preset, assignments=set_ or ())
    _say_next(folder)


def _say_next(folder: RunFolder) -> None:
    """Where run.toml is, and the command that starts the run, or first what it lacks, with those
    that make an adapter which it can start from."""
    from scripts.base.invocation import say
    from scripts.prepare.start_adapter import calls_no_tool, missing_adapter
    from scripts.run.config import read_config

    config = read_config(folder.config)
    lacks = _lacks(folder, config)
    if (no_tools := calls_no_tool(folder, config)) is not None:
        say("\n".join([*lacks, f"{folder.config}; {no_tools}"]))
        return
    if (missing := missing_adapter(folder, config)) is not None:
        lacks.append(missing)
    if lacks:
        say("\n".join(lacks) + f"; then `grpo run {folder.typed}` starts it")
    else:
        say(f"{folder.config}; `grpo run {folder.typed}` starts it")


def _lacks(folder: RunFolder, config: RunConfig) -> list[str]:
    """What run.toml names and is not there, but for the adapter. Nothing is downloaded."""
    from scripts.base.signals import Wish
    from scripts.phases.context import Context, find_model
    from scripts.run.timings import Stopwatch, process_began

    ctx = Context(folder, config, lambda event: None, Wish(), Stopwatch(process_began()))
    found = []
    try:
        find_model(config.model.path, from_hub=Path)
    except BadInput as e:
        found.append(f"{folder.config}: {e}")
    try:
        ctx.require_task_files()
    except BadInput as e:
        found.append(str(e))
    return found


def _of_any_environment(preset: str) -> dict[str, Any]:
    """Settings in place of a preset's that suit the shell tasks alone. Credit by state compares
    turns with the same reward so far; where a step pays any number hardly two turns share one. When
    the habit is gone, so that steps may be shorter, is known of the shell alone."""
    from scripts.prepare.presets import preset_config

    config = preset_config(preset)
    found: dict[str, Any] = {}
    if config.advantages.credit == "state":
        found["advantages.credit"] = "turn"
    if config.trainer.decay_after:
        found["trainer.decay_after"] = 0
    return found


def _with_environment(
    folder: RunFolder, env: str, given: Mapping[str, str], preset: str, assignments: Sequence[str]
) -> None:
    """A run on a user's environment. Task files that the assignments name are left as they are; the
    others are written next to run.toml. Raises `BadInput`, with nothing written."""
    from fieldkit.codec import encode
    from fieldkit.files.atomic import write_text
    from rollout.tasks import task_faults
    from scripts.base.checkout import ROOT, in_checkout
    from scripts.environments.freeze import require_taken
    from scripts.environments.order import Order, class_of
    from scripts.environments.own_env import own_environment, run_tasks
    from scripts.prepare.presets import new_run, preset_config
    from scripts.run.assignments import parse, toml_value

    own = own_environment(env, "", given, typed_again("--passes", "reward >= 1"), tell)
    chosen, table = parse(assignments), f"envs.{own.name}."
    keys = {k.removeprefix(table): v for k, v in chosen.items() if k.startswith(table)}
    settings = replace(own, values={**own.values, **keys}).settings
    wanted: dict[str, Any] = {table + key: value for key, value in own.values.items()}
    wanted |= {"data.final": "", **_of_any_environment(preset)}
    files: dict[Path, list[Task]] = {}
    if not {"data.pool", "data.heldout"} <= chosen.keys():
        for split, tasks in zip(SPLITS, run_tasks(own.name, settings, ROOT), strict=True):
            file = folder.path / f"{split}.jsonl"
            wanted[f"data.{split}"] = str(in_checkout(file))
            if f"data.{split}" not in chosen:
                files[file] = tasks
                if settings.style == "trl":
                    require_taken(class_of(Order(settings.use, str(ROOT))), tasks[0])
    wanted |= chosen
    made = [f"{k}={toml_value(v)}" for k, v in wanted.items()]
    preset_config(preset, made)  # knows the environment from here on
    for file, tasks in files.items():
        if faults := task_faults(tasks[0], str(file)):
            raise BadInput(f"--env {env}: {faults[0]}")
    new_run(folder, preset, assignments=made)
    for file, tasks in files.items():
        write_text(file, "".join(encode(task) + "\n" for task in tasks))
        print(f"{file}: {len(tasks)} tasks of {own.name}")
    tell(f"`grpo env check {own.name} --run {folder.typed}` plays some tasks by chance")
    _say_next(folder)
