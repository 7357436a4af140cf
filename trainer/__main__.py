"""`python -m trainer`: one GRPO step from the command line, with files in and files out.

The exit codes are those of `fieldkit.errors`. It knows no run folder; the loop calls it with the
paths of a step.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from fieldkit.errors import BadInput, FieldkitError, Interrupted, foreseen
from fieldkit.settings import keys
from fieldkit.training.adapter import read_adapter
from trainer.inputs import StepInputs
from trainer.progress import JsonLines, Lines
from trainer.settings import TrainerSettings, read_settings
from trainer.step import train

T = TypeVar("T", bound=Callable[..., None])

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

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
    adapter_init: Annotated[Path, typer.Option(help="The adapter that sampled it.")],
    out_dir: Annotated[Path, typer.Option(help=_OUT_HELP)],
    reference_adapter: Annotated[
        Path | None, typer.Option(help="What the KL holds to: step 0's adapter.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help=_MODEL_HELP)] = None,
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
    """Train an adapter on a bundle of rollouts, one step, and write the new adapter."""
    try:
        settings = read_settings(settings_json, **said)
        inputs = StepInputs(
            bundle=bundle,
            adapter=adapter_init,
            reference=reference_adapter,
            model_dir=_model_dir(model, adapter_init),
            state=optimizer_state,
            out_dir=out_dir,
        )
        told = Lines(sys.stderr if progress_json else sys.stdout)
        progress = JsonLines(sys.stdout, told) if progress_json else told
        train(inputs, settings, progress)
    except (FieldkitError, OSError) as e:
        if (known := foreseen(e)) is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        raise typer.Exit(known.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted: nothing was written; run the same command again", file=sys.stderr)
        raise typer.Exit(Interrupted.exit_code) from None


def _model_dir(given: Path | None, adapter: Path) -> Path:
    folder = given or Path(read_adapter(adapter).base_model)
    if not (folder / "config.json").is_file():
        raise BadInput(f"--model: {folder}: no model folder (no config.json there)")
    return folder


if __name__ == "__main__":
    app(prog_name="python -m trainer")
