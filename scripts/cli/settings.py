"""The commands that explain settings: the keys of run.toml, and what a reward pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.base.invocation import tell
from scripts.cli.arguments import Json, print_json
from scripts.cli.look import print_rich

if TYPE_CHECKING:
    from scripts.run.config import RunConfig
    from scripts.run.folder import RunFolder
    from scripts.words.table import Table

app = typer.Typer()
reward_app = typer.Typer(help="Explain the reward.", no_args_is_help=True)
app.add_typer(reward_app, name="reward")


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

    folder = open_run(run) if run else None
    config = read_config(folder.config) if folder else RunConfig()
    if step is not None:
        config = replace(config, reward=config.reward.at_step(step))
    tables = _worth(folder, config) if config.envs else [explain_table(config)]
    if run is None:
        tables = [_of_defaults(table) for table in tables]
    if json_:
        shown = [table.plain() for table in tables]
        print_json(shown if config.envs else shown[0])
        return
    for table in tables:
        print_rich(table.rich())


def _of_defaults(table: Table) -> Table:
    """What the table says, and that no run.toml has chosen these settings."""
    note = "The defaults, as without a run.toml; a preset writes others, and RUN shows a run's own."
    return replace(table, title=f"{table.title} (defaults)", notes=(*table.notes, note))


def _worth(folder: RunFolder | None, config: RunConfig) -> list[Table]:
    """What the run's own environments pay, and what the shell pays if the pool has both."""
    import tempfile

    from rollout.tasks import read_tasks
    from scripts.base.checkout import from_checkout
    from scripts.base.display import progress_bar
    from scripts.evidence.replay import explain_table, worth_table
    from scripts.phases.context import run_model
    from scripts.prepare.worth import play_worth
    from scripts.run.template import chat_renderer

    tasks = read_tasks(from_checkout(config.data.pool))
    model_dir = run_model(folder, config.model.path)
    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        found = play_worth(
            config, tasks, lambda: chat_renderer(config.model, model_dir), Path(scratch), progress
        )
    tables = [worth_table(one.env, one.tasks, one.played, one.absent) for one in found]
    own = all(task.env in config.envs for task in tasks)
    return tables if own else [explain_table(config), *tables]
