"""Arguments and options that several `grpo` commands share."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from fieldkit.errors import BadInput


def complete_run(typed: str) -> list[str]:
    """The runs of this checkout whose names begin as typed: shell completion."""
    from scripts.base.checkout import ROOT

    return sorted(p.parent.name for p in (ROOT / "runs").glob(f"{typed}*/run.toml"))


Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A name under runs/, or a path.", autocompletion=complete_run
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a key in run.toml; may be given several times."
    ),
]
Sandbox = Annotated[
    Literal["bwrap", "none"],
    typer.Option(
        help="none: the policy's commands run as you, unprotected. run.toml cannot set it: give it"
        " on every command that continues such a run."
    ),
]
Engine = Annotated[
    Literal["ray", "here"] | None,
    typer.Option(
        "--engine",
        help="ray: on the nodes of a Ray cluster; here: on this machine. Kept in run.toml as"
        " cluster.kind.",
    ),
]
OnConverged = Annotated[
    Literal["stop", "grow", "harder"] | None,
    typer.Option(
        help="When the pool teaches too little: stop, or add tasks of the reserve to it; harder:"
        " those first that are like tasks which still teach, or are stuck."
    ),
]
KeyFrom = Annotated[
    str | None,
    typer.Option(
        metavar="VARIABLE",
        help="The environment variable that holds the endpoint's API key; default: OPENAI_API_KEY.",
    ),
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="Sampling temperature; default: 0.2.")
]


def _environments(typed: str) -> list[str]:
    """Python files and registered names that begin as typed: shell completion."""
    from rollout.envs.registry import ENVIRONMENTS

    files = [str(path) for path in Path().glob(f"{typed}*.py")]
    return sorted([*files, *(n for n in ENVIRONMENTS if n.startswith(typed))])


EnvName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="FILE.py, FILE.py:Class, module:Class, the address of an OpenEnv server, or a name in"
        " the envs of --run.",
        autocompletion=_environments,
    ),
]
EnvRun = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Use the settings of this run.toml.")
]
Passes = Annotated[str, typer.Option(help='When an episode counts as passed, as "reward >= 1".')]
Ends = Annotated[str, typer.Option(help="The attribute that is true once the episode is over.")]
Python = Annotated[
    str,
    typer.Option(
        metavar="PYTHON", help="Of the virtual environment that serves an OpenEnv app, FILE.py:app."
    ),
]


def refuse(options: Mapping[str, object], why: str) -> None:
    """Raise `BadInput` for the first of these options, by its flag, that was typed where it would
    do nothing. One that was not typed is None, False or an empty list."""
    for flag, value in options.items():
        if value is not None and value is not False and value != []:
            raise BadInput(f"{flag}: {why}")


def endpoint_key(key_from: str | None) -> str:
    """The endpoint's API key. Servers on one's own machine take any. Raises `BadInput` where the
    variable that was typed holds none."""
    key = os.environ.get(key_from or "OPENAI_API_KEY", "")
    if key_from is not None and not key:
        raise BadInput(f"--key-from {key_from}: this variable is not set; `export {key_from}=KEY`")
    return key or "local"


def write_engine(run: str, engine: str | None) -> None:
    """Write what --engine says into run.toml. Raises as `scripts.run.assignments.assign`."""
    if engine is None:
        return
    from scripts.run.assignments import assign
    from scripts.run.folder import open_run

    assign(open_run(run), [f"cluster.kind='{'ray' if engine == 'ray' else 'none'}'"])


def typed_again(*words: str) -> str:
    """The command as it was typed, with these words behind it."""
    return shlex.join(["grpo", *sys.argv[1:], *words])


def print_json(value: object) -> None:
    """Print what `--json` asks for."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
