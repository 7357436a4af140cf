"""`grpo env check` and `grpo env play`: an environment is played before any run is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldkit.errors import BadInput, Unavailable
from scripts.base.invocation import tell
from scripts.cli.arguments import (
    Ends,
    EnvName,
    EnvRun,
    Json,
    Passes,
    Python,
    print_json,
    refuse,
    typed_again,
)

if TYPE_CHECKING:
    from scripts.environments.env_check import Checked

Rows = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Rows for reset(**row), one JSON a line.")
]


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
        typer.Option(
            min=0.1, help="Time limit of one call; default: the run's, else 10 (a class) or 60."
        ),
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
    from scripts.cli.env.env_named import order_of, other_style, tasks_of
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
    keys = {"passes": passes, "ends": ends, "python": python}
    other = other_style(name, run, keys, typed_again("--passes", "reward >= 1"), tell)
    with progress_bar() as progress:
        if other is not None:
            settings = replace(
                other[1],
                call_seconds=call_seconds or other[1].call_seconds,
                rewards={**other[1].rewards, **own},
            )
            tasks = tasks_of(other[0], settings, run, rows, episodes)
            trials = WorldTrials(environment(other[0], settings, ROOT), tasks, **trial)
            checked = check_world(name, replace(trials, wants=settings.sessions), tell, progress)
        else:
            order = order_of(name, run, rows, passes, ends, episodes)
            order = replace(
                order,
                call_seconds=call_seconds or order.call_seconds,
                rewards={**order.rewards, **own},
                **trial,
            )
            checked = check_environment(order, progress)
    if run:
        checked = _in_context(checked, name, run)
    if json_:
        print_json(checked.plain())
    else:
        print(check_text(checked))
    if not checked.sound:
        n = sum(f.level == "error" for f in checked.findings)
        raise BadInput(f"{name}: {n} error(s)")


def _in_context(checked: Checked, name: str, run: str) -> Checked:
    """The result, with what the run's model and limits say of the texts. Without the model, which
    is not downloaded for that, the result as it is."""
    from scripts.environments.env_check import with_context
    from scripts.phases.context import run_model
    from scripts.run.config import read_config
    from scripts.run.folder import open_run
    from scripts.run.template import chat_renderer, tool_form

    def not_here(hub_id: str) -> Path:
        raise BadInput(f"{hub_id} is not here yet; `grpo doctor {folder.typed}` downloads it")

    folder = open_run(run)
    config = read_config(folder.config)
    try:
        model_dir = run_model(folder, config.model.path, not_here)
        renderer, form = chat_renderer(config.model, model_dir), tool_form(config.model, model_dir)
    except (BadInput, Unavailable) as e:
        tell(f"how much of the context its texts take is not measured: {e}")
        return checked
    return with_context(checked, renderer, form, config.envs[name].fallback, config.rollout)


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
    from rollout.envs.configured import environment
    from scripts.base.checkout import ROOT
    from scripts.cli.env.env_named import one_task, order_of, other_style
    from scripts.environments.by_hand import play_by_hand, play_world_by_hand
    from scripts.environments.instance import Broken
    from scripts.environments.order import class_of, trials_of

    keys = {"passes": passes, "ends": ends, "python": python}
    other = other_style(name, run, keys, typed_again("--passes", "reward >= 1"), tell)
    if other is not None:
        if rows is not None:
            refuse({"--seed": seed or None}, "not with --rows, whose first row decides it")
        made, task = environment(*other, ROOT), one_task(*other, rows, seed)
        play_world_by_hand(made, task, _typed(), sys.stdout, tell)
        return
    order = order_of(name, run, rows, passes, ends, 1)
    try:
        play_by_hand(trials_of(order, class_of(order)), seed, _typed(), sys.stdout)
    except Broken as e:
        raise BadInput(
            f"{e}; `grpo env check {shlex.quote(name)}` says all that is wrong"
        ) from None


def _typed() -> Iterator[str]:
    """The lines of stdin, with a prompt if a person types them."""
    person = sys.stdin.isatty()
    while True:
        try:
            yield input("> " if person else "")
        except EOFError:
            return
