"""The presets: each is a run.toml with the settings that a person is likely to change.

Every other key has a default, which the manifest shows. A new preset is one file in `presets/`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_text
from rollout.envs.configured import register_environments
from scripts.base.checkout import ROOT
from scripts.run.assignments import assigned, parse
from scripts.run.config import RunConfig, config_of, read_config
from scripts.run.folder import RunFolder

SHIPPED = Path(__file__).with_name("presets")


def presets(where: Path = SHIPPED) -> dict[str, Path]:
    """The preset files of a folder by their names."""
    return dict(sorted((file.stem, file) for file in where.glob("*.toml")))


EVALUATED = ("development.jsonl", "final.jsonl")
"""Further files of evaluation tasks that may be in the folder of a preset's held-out file."""


def held_out_files() -> set[str]:
    """The held-out files in the [data] of the shipped presets, and the development and final sets
    next to them."""
    tables = (tomllib.loads(file.read_text(encoding="utf-8")) for file in presets().values())
    named = {Path(t["data"]["heldout"]) for t in tables if "heldout" in t.get("data", {})}
    return {str(path) for file in named for path in (file, *map(file.with_name, EVALUATED))}


def run_text(preset: str, where: Path = SHIPPED, assignments: Sequence[str] = ()) -> str:
    """The run.toml of a preset with these settings, as `table.key=value`. Raises `BadInput`."""
    known = presets(where)
    if preset not in known:
        raise BadInput(f"--preset {preset}: unknown; known: {', '.join(known)}")
    text = known[preset].read_text(encoding="utf-8")
    return assigned(text, parse(assignments), known[preset].name)


def preset_config(preset: str, assignments: Sequence[str] = ()) -> RunConfig:
    """The settings of a shipped preset with these assignments. Registers its environments, so that
    tasks may name them. Raises `BadInput`."""
    text = run_text(preset, assignments=assignments)
    config = config_of(tomllib.loads(text), "--set" if assignments else f"--preset {preset}")
    register_environments(config.envs, ROOT)
    return config


def new_run(
    folder: RunFolder, preset: str, where: Path = SHIPPED, assignments: Sequence[str] = ()
) -> None:
    """Make the run folder with its run.toml, a copy of the named preset in `where`.

    assignments: settings as `table.key=value` that override the preset's. Raises `BadInput` if
    there is a run.toml already.
    """
    make_run(folder, run_text(preset, where, assignments))


def make_run(folder: RunFolder, text: str) -> None:
    """Make the run folder with this run.toml. Raises `BadInput` if there is one already."""
    if folder.config.exists():
        raise BadInput(
            f"{folder.config}: exists already; `grpo run {folder.typed}` continues it, or choose"
            " another name"
        )
    if folder.path.is_file() or (folder.path.is_dir() and any(folder.path.iterdir())):
        what = "is a file" if folder.path.is_file() else "holds other files and no run.toml"
        raise BadInput(
            f"{folder.path}: {what}; give the run another name, as in `grpo new {folder.typed}-2`"
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    write_text(folder.config, text)
    read_config(folder.config)
