"""`python -m trainer`: one GRPO step from the command line, with files in and files out.

The exit codes are those of `fieldkit.errors`. It knows no run folder; the loop calls it with the
paths of a step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.errors import BadInput, FieldkitError, Interrupted, foreseen
from fieldkit.training.adapter import read_adapter
from trainer.inputs import StepInputs
from trainer.progress import JsonLines, Lines
from trainer.settings import read_settings
from trainer.step import train

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_OUT_HELP = "Gets adapter/, trainer_state/ and train.json, all or none."
_MODEL_HELP = "Model folder. Default: the one that the adapter names."


@app.command()
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
    kl_coef: Annotated[float | None, typer.Option(help="β of the KL term.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or sgd.")] = None,
    lr: Annotated[float | None, typer.Option(help="The optimizer's learning rate.")] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="The gradient's L2 norm is cut to this.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="T that the bundle was sampled at.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bf16, fp32 or auto.")] = None,
    serving_dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16, float32 or auto.")
    ] = None,
    tokens_per_microbatch: Annotated[
        int | None, typer.Option(help="Input tokens of one forward pass.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool | None, typer.Option(help="Less memory, a third more time.")
    ] = None,
    allow_off_policy: Annotated[
        bool | None, typer.Option(help="Train on another adapter's bundle.")
    ] = None,
    settings_json: Annotated[
        Path | None, typer.Option(help="All settings as a JSON object; flags win over it.")
    ] = None,
    progress_json: Annotated[
        bool, typer.Option("--progress-json", help="Progress as JSON lines on stdout.")
    ] = False,
) -> None:
    """Take one REINFORCE step with KL on a bundle of rollouts and write the new adapter."""
    try:
        settings = read_settings(
            settings_json,
            kl_coef=kl_coef,
            optimizer=optimizer,
            lr=lr,
            clip_norm=clip_norm,
            temperature=temperature,
            dtype=dtype,
            serving_dtype=serving_dtype,
            tokens_per_microbatch=tokens_per_microbatch,
            gradient_checkpointing=gradient_checkpointing,
            allow_off_policy=allow_off_policy,
        )
        inputs = StepInputs(
            bundle=bundle,
            adapter=adapter_init,
            reference=reference_adapter,
            model_dir=_model_dir(model, adapter_init),
            state=optimizer_state,
            out_dir=out_dir,
        )
        progress = JsonLines(sys.stdout) if progress_json else Lines(sys.stdout)
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
