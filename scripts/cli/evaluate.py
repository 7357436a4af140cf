"""`grpo eval`: the evaluation phase of a run, or one arm that belongs to no run.

With RUN it is an ordinary phase. With --adapter or --endpoint it makes a folder for the arm, plays
it, prints its figures, and keeps the folder with --out.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldkit.errors import BadInput
from scripts.cli.arguments import (
    Engine,
    Json,
    KeyFrom,
    Sandbox,
    Set,
    Temperature,
    endpoint_key,
    print_json,
    refuse,
    write_engine,
)
from scripts.cli.bugs import reporting_bugs
from scripts.cli.phases import Events, do_phase
from scripts.phases.registry import PHASES, STEP

if TYPE_CHECKING:
    from rollout.sandbox.command import SandboxKind
    from scripts.phases.single_arm import Endpoint
    from scripts.run.folder import RunFolder

app = typer.Typer()

_GOES_ONLY = "goes only with {}; `grpo eval --help` shows which go together"


@app.command("eval")
def eval_(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A name under runs/, or a path.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help=f"{PHASES['eval'].numbers[STEP]} (RUN)")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Evaluate this adapter; no run is needed.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Evaluate a model behind chat completions instead."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The adapter's base model (smol, a folder or a hub id; default: smol), or the"
            " model's name at the endpoint.",
        ),
    ] = None,
    key_from: KeyFrom = None,
    tasks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Tasks to play; default: the preset's held-out file."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Only the file's first N tasks; 0: all.")
    ] = 0,
    temperature: Temperature = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the arm in this folder, for grpo show and compare."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="The preset whose limits apply to an arm without a run; default: smol."),
    ] = None,
    set_: Set = None,
    json_: Json = False,
    engine: Engine = None,
    sandbox: Sandbox = "bwrap",
    events: Events = False,
) -> None:
    """Evaluate a run's adapters, or without a run any adapter or any model behind an endpoint.

    With RUN: evaluates the newest adapter and any missing start arm, and prints the tables.

    Examples: grpo eval tonight, or grpo eval --adapter adapters/mine --limit 48, or grpo eval
    --endpoint http://localhost:8000/v1 --model NAME --tasks data/heldout.jsonl --out runs/other
    """
    if run is not None:
        own: dict[str, object] = {
            "--adapter": adapter,
            "--endpoint": endpoint,
            "--model": model,
            "--tasks": tasks,
        }
        own |= {"--key-from": key_from, "--temperature": temperature, "--out": out}
        own |= {"--limit": limit or None, "--preset": preset, "--set": set_, "--json": json_}
        refuse(own, _GOES_ONLY.format("--adapter or --endpoint"))
        numbers = {} if step is None else {STEP: step}
        write_engine(run, engine)
        do_phase(PHASES["eval"], run, sandbox, events, [], numbers)
        return
    refuse({"--step": step, "--engine": engine}, _GOES_ONLY.format("RUN"))
    if (adapter is None) == (endpoint is None):
        raise BadInput(
            "name one: a run, --adapter DIR or --endpoint URL; `grpo eval --help` has an example"
            " of each"
        )
    if adapter is not None:
        refuse({"--key-from": key_from}, _GOES_ONLY.format("--endpoint"))
    preset = preset or "smol"
    policy, extra = _policy(adapter, endpoint, model, key_from, set_ or [], preset)
    _play(policy, model, tasks, limit, temperature, out, preset, extra, json_, sandbox)


def _policy(
    adapter: Path | None,
    endpoint: str | None,
    model: str | None,
    key_from: str | None,
    given: list[str],
    preset: str,
) -> tuple[Path | Endpoint, list[str]]:
    """The policy, and its further settings; checked before anything is written."""
    from scripts.phases import single_arm

    if adapter is not None:
        single_arm.require_adapter(adapter)
        return adapter, given
    assert endpoint is not None
    found, context = single_arm.find_endpoint(endpoint, model, endpoint_key(key_from))
    settings = [f"rollout.concurrency={single_arm.AT_ONCE}", *given]
    _require_context(found, context, settings, preset)
    return found, settings


def _require_context(
    endpoint: Endpoint, context: int | None, settings: list[str], preset: str
) -> None:
    from scripts.prepare.presets import preset_config

    wanted = preset_config(preset, settings).rollout.max_model_len
    if context is not None and context < wanted:
        raise BadInput(
            f"{endpoint.url}: {endpoint.model} has a context of {context} tokens, and an episode"
            f" may have {wanted}; add `--set engine.max_model_len={context}`"
        )


def _play(
    policy: Path | Endpoint,
    model: str | None,
    tasks: Path | None,
    limit: int,
    temperature: float | None,
    out: Path | None,
    preset: str,
    given: list[str],
    json_: bool,
    sandbox: SandboxKind,
) -> None:
    from rollout.tasks import read_tasks
    from scripts.base.checkout import from_checkout
    from scripts.base.display import make_display
    from scripts.compare.arm_figures import arm_figures, plain_figures, single_arm_table
    from scripts.phases.single_arm import play_adapter, play_endpoint, settings_of
    from scripts.prepare.presets import preset_config, run_text
    from scripts.run.assignments import parse
    from scripts.run.config import read_config

    config = preset_config(preset, given)
    file = tasks or from_checkout(config.data.heldout)
    if not file.is_file():
        raise BadInput(f"--tasks {file}: no such file; `grpo synth` writes the default task sets")
    read_tasks(file)
    said = parse(given)
    if "model.adapter" in said:
        raise BadInput("--set model.adapter: --adapter DIR names it")
    model = model or said.get("model.path", "smol")
    limit = limit or said.get("eval.tasks", 0)
    settings = [*given, *settings_of(policy, model, file, limit, temperature)]
    folder = _folder(out, run_text(preset, assignments=settings))
    display = make_display(details=True, out=sys.stderr)  # stdout has the figures
    with reporting_bugs(str(folder.path), display):
        if isinstance(policy, Path):
            summary = play_adapter(folder, display.tell, sandbox, is_kept=out is not None)
        else:
            summary = play_endpoint(folder, policy, display.tell, sandbox, is_kept=out is not None)
    played = read_config(folder.config).eval.of(read_tasks(file))
    figures = arm_figures(_name(policy), folder.evals / summary.key, played)
    if json_:
        print_json(plain_figures(figures))
    else:
        from scripts.cli.look import print_rich

        print_rich(single_arm_table(figures).rich())
    if out is None:
        shutil.rmtree(folder.path)


def _name(policy: Path | Endpoint) -> str:
    return str(policy) if isinstance(policy, Path) else f"{policy.model} at {policy.url}"


def _folder(out: Path | None, text: str) -> RunFolder:
    """The arm's folder with its run.toml, new or from an earlier start.

    Without --out it is in the user's cache folder, named after its settings, so that the same
    command finds its earlier episodes. Raises `BadInput` if something else is there.
    """
    from fieldkit.files.atomic import sha256_text, write_text
    from fieldkit.files.user_cache import cache_dir
    from scripts.run.folder import resolve_run

    place = out or cache_dir() / "evals" / f"eval-{sha256_text(text)[:16]}"
    folder = resolve_run(str(place.absolute()))
    other = shlex.quote(f"{folder.path}-2")
    if folder.config.is_file():
        if folder.config.read_text(encoding="utf-8") != text:
            raise BadInput(
                f"{folder.config}: another evaluation or a run is there; name another folder, as"
                f" in `--out {other}`"
            )
        return folder
    if folder.path.is_file() or (folder.path.is_dir() and any(folder.path.iterdir())):
        raise BadInput(
            f"--out {folder.path}: something else is there; name a new folder, as in"
            f" `--out {other}`"
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    write_text(folder.config, text)
    return folder
