"""`python -m trainer`: one GRPO step from the command line, with files in and files out.

The exit codes are those of `fieldkit.errors`. It knows no run folder; the loop calls it with the
paths of a step.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from fieldkit.errors import BadInput, FieldkitError, Interrupted, foreseen
from fieldkit.settings import keys
from fieldkit.training.adapter import read_adapter
from trainer.inputs import StepInputs
from trainer.progress import JsonLines, Lines, Progress, Silence
from trainer.ranks.rank import Rank, is_rank, reporting, this_rank
from trainer.ranks.torchrun import run_ranks
from trainer.settings import TrainerSettings, read_settings
from trainer.step import train

T = TypeVar("T", bound=Callable[..., None])

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_AS_A_RANK = ("-P", "-m", "trainer")
"""What Python is told to run as each rank: this program, with the same words after it."""

_OUT_HELP = "Gets adapter/, trainer_state/ and train.json, all or none."
_MODEL_HELP = "Model folder. Default: the one that the adapter names."


def _with_flags_of_settings(command: T) -> T:
    """Give a command one flag for each key of [trainer], which reach it as its `**said`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = [
        inspect.Parameter(
            key.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[key.kind | None, typer.Option(help=key.expected)],
        )
        for key in keys(TrainerSettings)
    ]
    command.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return command


@app.command()
@_with_flags_of_settings
def main(
    bundle: Annotated[Path, typer.Option(help="trajectory_bundle.jsonl of one step.")],
    adapter_init: Annotated[Path, typer.Option(help="The adapter to train.")],
    out_dir: Annotated[Path, typer.Option(help=_OUT_HELP)],
    reference_adapter: Annotated[
        Path | None, typer.Option(help="What the KL holds to: step 0's adapter.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help=_MODEL_HELP)] = None,
    sampler_adapter: Annotated[
        Path | None,
        typer.Option(help="The adapter that sampled the bundle. Default: adapter-init."),
    ] = None,
    optimizer_state: Annotated[
        Path | None, typer.Option(help="trainer_state/ of the step before.")
    ] = None,
    settings_json: Annotated[
        Path | None, typer.Option(help="All settings as a JSON object; flags win over it.")
    ] = None,
    progress_json: Annotated[
        bool,
        typer.Option(
            "--progress-json", help="Progress as JSON lines on stdout, and as text on stderr."
        ),
    ] = False,
    **said: Any,
) -> None:
    """Train an adapter on a bundle of rollouts, one step, and write the new adapter.

    With --processes 2 it has torchrun start two ranks that take the step together. It may itself be
    what torchrun starts.
    """
    try:
        with reporting():
            rank = this_rank()
            settings = read_settings(settings_json, **said)
            inputs = StepInputs(
                bundle=bundle,
                adapter=adapter_init,
                reference=reference_adapter,
                model_dir=_model_dir(model, adapter_init),
                state=optimizer_state,
                out_dir=out_dir,
                sampler=sampler_adapter,
            )
            launch = None
            if settings.launched and not is_rank():
                words = [*_AS_A_RANK, *sys.argv[1:]]
                launch = partial(run_ranks, words, settings, out_dir)
            train(inputs, settings, _progress(progress_json, rank), rank=rank, launch=launch)
    except (FieldkitError, OSError) as e:
        if (known := foreseen(e)) is None:
            raise
        if not is_rank():  # torchrun tells what ends a rank
            print(f"error: {known}", file=sys.stderr)
        raise typer.Exit(known.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted: nothing was written; run the same command again", file=sys.stderr)
        raise typer.Exit(Interrupted.exit_code) from None


def _progress(as_json: bool, rank: Rank) -> Progress:
    """What tells a person, and with `as_json` a program, how far the step is; one rank does."""
    if not rank.is_first:
        return Silence()
    told = Lines(sys.stderr if as_json else sys.stdout)
    return JsonLines(sys.stdout, told) if as_json else told


def _model_dir(given: Path | None, adapter: Path) -> Path:
    folder = given or Path(read_adapter(adapter).base_model)
    if not (folder / "config.json").is_file():
        raise BadInput(f"--model: {folder}: no model folder (no config.json there)")
    return folder


if __name__ == "__main__":
    app(prog_name="python -m trainer")
