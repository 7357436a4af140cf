"""`grpo sft`: makes the adapter that a run starts from, from demonstrations, from episodes, or
untrained."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.cli.arguments import Set, refuse

if TYPE_CHECKING:
    from scripts.base.display import Progress
    from scripts.prepare.sft import SftSettings
    from scripts.run.config import ModelSettings


def sft(
    out: Annotated[Path, typer.Argument(help="Folder to write the adapter to.")],
    demos: Annotated[int | None, typer.Option(min=8, help="Number of demonstrations.")] = None,
    stops: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of these demonstrations whose last turn says that the task is done.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of demonstrations and training.")] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Learn from the best episodes of this run, or of a folder from `grpo eval --out`"
            " or `grpo env eval --out`.",
        ),
    ] = None,
    oracle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Learn from the oracle's episodes of these tasks."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="With --oracle: the preset whose environments and limits apply; default: smol."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="With --oracle: use this run's environments and limits instead.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Write an untrained adapter, which changes nothing yet.")
    ] = False,
    per_task: Annotated[
        int | None,
        typer.Option(min=1, help="With --from: the most episodes of one task; default: 4."),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(min=0.01, help="Passes over the demonstrations.")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            min=1e-7,
            max=1.0,
            help="Learning rate; default: 2e-3, for a model of millions of weights. For one of"
            " billions 2e-4 is usual.",
        ),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER", help="A layer to adapt, such as q_proj; may be given several times."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Not with --oracle: the name of a packaged model, a model folder or a hub id;"
            " default: smol, or with --from the run's."
        ),
    ] = None,
    set_: Set = None,
) -> None:
    """Train a warm-start adapter on oracle demonstrations; the defaults made adapters/smol-warm.

    With --from it learns from stored episodes that passed, but not from held-out tasks.

    Example: grpo sft adapters/mine --demos 800

    Example: grpo sft adapters/stops --stops 1

    Example: grpo sft adapters/next --from tonight

    Example: grpo sft adapters/sql-warm --oracle data/sql/demonstrations.jsonl --preset sql --lora
    q_proj --lora k_proj --lora v_proj --lora o_proj

    Example: grpo sft adapters/mine --fresh --model Qwen/Qwen3-0.6B --lora q_proj --lora v_proj
    """
    from scripts.base.display import progress_bar
    from scripts.base.invocation import say
    from scripts.prepare.sft import SftSettings, proving
    from scripts.run.config import ModelSettings

    if oracle is None:
        of_episodes = {"--run": run, "--preset": preset, "--set": set_}
        refuse(of_episodes, "only with --oracle, whose episodes it sets")
    if run is not None:
        refuse({"--preset": preset, "--set": set_}, "not with --run, whose settings apply")
    if from_ is None:
        refuse({"--per-task": per_task}, "only with --from, of whose episodes it takes so many")
    of_demos: dict[str, object] = {"--demos": demos, "--stops": stops}
    if fresh:
        of_training = {"--oracle": oracle, "--from": from_, "--epochs": epochs, "--lr": lr}
        refuse(of_demos | of_training, "not with --fresh, which trains on nothing")
    elif oracle is not None:
        of_others = {"--from": from_, "--model": model}
        refuse(of_demos | of_others, "not with --oracle, which has its own episodes and model")
    elif from_ is not None:
        refuse(of_demos, "not with --from, whose episodes --per-task limits")

    settings = SftSettings()
    settings = replace(
        settings,
        demos=demos or settings.demos,
        epochs=epochs or settings.epochs,
        lr=lr or settings.lr,
        target_modules=tuple(lora or settings.target_modules),
        seed=settings.seed if seed is None else seed,
    )
    if stops is not None:
        settings = replace(settings, demo=replace(settings.demo, stop_share=stops))
    base = ModelSettings(path=model) if model else ModelSettings()
    if fresh:
        _sft_fresh(settings, base, out)
        return
    with progress_bar() as progress:
        if oracle is not None:
            given = set_ or []
            base, metrics = _sft_oracle(
                settings, oracle, run, preset or "smol", given, out, progress
            )
        elif from_ is not None:
            base, metrics = _sft_from(settings, from_, per_task or 4, model, out, progress)
        else:
            metrics = _sft_played(settings, model, out, progress)
    print(f"{out}: an adapter after {metrics['train_runtime']:.0f} s")
    say(f"next: `{proving(out, base.path)}`, then {_in_run_toml(out, base)}")


def _sft_played(
    settings: SftSettings, model: str | None, out: Path, progress: Progress
) -> dict[str, float]:
    from scripts.phases.context import find_model
    from scripts.prepare.model import build_model
    from scripts.prepare.sft import default_avoided, warm_start

    folder = build_model() if model is None else find_model(model)
    return warm_start(settings, folder, default_avoided(), out, progress, model=model)


def _sft_from(
    settings: SftSettings,
    run: str,
    per_task: int,
    model: str | None,
    out: Path,
    progress: Progress,
) -> tuple[ModelSettings, dict[str, float]]:
    """The [model] that the adapter was trained under, and TRL's metrics."""
    from rollout.envs.tool_yardsticks import YARDSTICK_FORM
    from scripts.base.invocation import say
    from scripts.phases.context import run_model
    from scripts.prepare.best_episodes import check_same_model, choose, find_source
    from scripts.prepare.sft import require_free, require_layers, warm_start_from
    from scripts.run.config import ModelSettings
    from scripts.run.folder import open_run
    from scripts.run.template import tool_form

    require_free(out)
    folder = open_run(run)
    source = find_source(folder)
    base = source.config.model if source.has_ids else ModelSettings()
    base = replace(base, path=model or base.path)
    model_dir = run_model(folder, base.path)
    check_same_model(source, model_dir, other_weights=model is not None)
    require_layers(settings, model_dir)
    chosen = choose(source, model_dir, per_task, progress)
    print(chosen.told)
    if (
        source.config.envs
        and not source.has_ids
        and tool_form(ModelSettings(), model_dir) != YARDSTICK_FORM
    ):
        say(
            f"these episodes call tools in the {YARDSTICK_FORM} form: a run from {out} needs"
            f' tool_form = "{YARDSTICK_FORM}" under [model]'
        )
    flags = f"--from {folder.typed} --per-task {per_task}"
    metrics = warm_start_from(
        settings, model_dir, chosen, flags, out, progress, model=model, base=base.path
    )
    return base, metrics


def _sft_fresh(settings: SftSettings, base: ModelSettings, out: Path) -> None:
    from scripts.base.invocation import say
    from scripts.phases.context import find_model
    from scripts.prepare.fresh import write_fresh_adapter

    write_fresh_adapter(settings, find_model(base.path), out)
    layers = ", ".join(settings.target_modules)
    print(f"{out}: an adapter of rank {settings.rank} on {layers} that changes nothing yet")
    say(f"next: {_in_run_toml(out, base)}")


def _in_run_toml(out: Path, base: ModelSettings) -> str:
    """The [model] of a run from this adapter: itself, and what else is not the default. Paths of
    run.toml start at the checkout."""
    from fieldkit.codec import plain
    from scripts.base.checkout import in_checkout
    from scripts.run.assignments import toml_value

    default = plain(type(base)())
    chosen = {k: v for k, v in plain(base).items() if v != default[k]}
    values = chosen | {"adapter": str(in_checkout(out.resolve()))}
    told = ", ".join(f"{key} = {toml_value(value)}" for key, value in values.items())
    return f"[model] {told} in a run.toml"


def _sft_oracle(
    settings: SftSettings,
    tasks: Path,
    run: str | None,
    preset: str,
    given: list[str],
    out: Path,
    progress: Progress,
) -> tuple[ModelSettings, dict[str, float]]:
    """As `_sft_from`."""
    import tempfile

    from scripts.base.checkout import in_checkout
    from scripts.phases.context import run_model
    from scripts.prepare.oracle_episodes import oracle_episodes
    from scripts.prepare.presets import preset_config
    from scripts.prepare.sft import require_free, require_layers, warm_start_from
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    require_free(out)
    folder = open_run(run) if run else None
    config = read_config(folder.config) if folder else preset_config(preset, given)
    model_dir = run_model(folder, config.model.path)
    require_layers(settings, model_dir)
    with tempfile.TemporaryDirectory() as scratch:
        chosen = oracle_episodes(config, tasks, model_dir, Path(scratch), progress)
    played = f"--run {folder.typed}" if folder else f"--preset {preset}"
    flags = f"--oracle {shlex.quote(str(in_checkout(tasks.resolve())))} {played}"
    flags += "".join(f" --set {shlex.quote(one)}" for one in given)
    base = config.model
    metrics = warm_start_from(settings, model_dir, chosen, flags, out, progress, base=base.path)
    return base, metrics
