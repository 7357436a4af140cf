"""The adapter that a run starts from: what is wrong with the one it names, and how to make another.

A run on environments needs one that calls tools. The default adapter, and what a bare `grpo sft`
makes, write shell commands. Nothing here reads an adapter's weights.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from scripts.base.checkout import ROOT, from_checkout
from scripts.prepare.model import DEFAULT_MODEL
from scripts.run.config import ModelSettings, RunConfig
from scripts.run.folder import RunFolder

_ORACLE_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""What an adapter that learns to call tools adapts: those of the SQL agent's nights."""
_DEMONSTRATIONS = "demonstrations.jsonl"
"""Tasks for a warm start, where a file of this name lies beside the pool."""


def missing_adapter(folder: RunFolder, config: RunConfig) -> str | None:
    """That the run's adapter is not there, with the command that makes it; None where it is."""
    path = from_checkout(config.model.adapter)
    if path.is_dir():
        return None
    kind = "tool calls" if config.envs else "shell tasks"
    return (
        f"{folder.config}: model.adapter is {path}: no such folder; "
        f"`{making(folder, config, config.model.adapter)}` makes a start for {kind}, or name a LoRA"
        f" adapter for {config.model.path}"
    )


def calls_no_tool(folder: RunFolder, config: RunConfig) -> str | None:
    """That the run has environments and starts from the default adapter, with the commands that
    make and take another; None where it does not."""
    default = ModelSettings().adapter
    if not config.envs or config.model.adapter != default:
        return None
    own = f"adapters/{folder.name}"
    return (
        f"{default} writes shell commands and calls no tool of {', '.join(config.envs)};"
        f" `{making(folder, config, own)}` makes another start, and `grpo run {folder.typed} --set"
        f" model.adapter={own}` takes it (docs/environments.md, A run)"
    )


def making(folder: RunFolder, config: RunConfig, adapter: str) -> str:
    """The command that makes an adapter for this run: of environments from their oracle, or else
    one that changes nothing yet. adapter: as run.toml names it."""
    words = ["grpo", "sft", _typed(adapter)]
    if any(env.oracle for env in config.envs.values()):
        pool = Path(config.data.pool)
        more = pool.with_name(_DEMONSTRATIONS)
        tasks = more if from_checkout(str(more)).is_file() else pool
        words += ["--oracle", _typed(str(tasks)), "--run"]
        lora = [word for layer in _ORACLE_LAYERS for word in ("--lora", layer)]
        return f"{shlex.join(words)} {folder.typed} {shlex.join(lora)}"
    if config.envs:
        words.append("--fresh")
    base = config.model.path
    return shlex.join(words if base == DEFAULT_MODEL else [*words, "--model", base])


def _typed(path: str) -> str:
    """A path of run.toml as a command takes it: those start in the current folder."""
    return path if Path.cwd() == ROOT else str(from_checkout(path))
