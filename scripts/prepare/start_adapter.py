"""The adapter that a run starts from: what is wrong with the one it names, and how to make another.

A run on environments needs one that calls tools. The default adapter, and what a bare `grpo sft`
makes, write shell commands. One from another trainer may have learned another chat template than
the model's. Nothing here reads an adapter's weights.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from fieldkit.errors import BadInput
from scripts.base.checkout import ROOT, from_checkout, in_checkout
from scripts.prepare.hub import may_be_hub_id
from scripts.prepare.model import DEFAULT_MODEL
from scripts.run.config import ModelSettings, RunConfig
from scripts.run.folder import RunFolder, is_step
from scripts.run.template import chat_renderer, own_template

_ORACLE_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""What an adapter that learns to call tools adapts: those of the SQL agent's nights."""
_DEMONSTRATIONS = "demonstrations.jsonl"
"""Tasks for a warm start, where a file of this name lies beside the pool."""


def missing_adapter(folder: RunFolder, config: RunConfig) -> str | None:
    """That the run's adapter is not there, with the command that makes it; None where it is."""
    named = config.model.adapter
    path = from_checkout(named)
    if path.is_dir():
        return None
    gone = f"{folder.config}: model.adapter is {path}: no such folder; "
    take = f"`grpo run {folder.typed}{config.flags} --set model.adapter="
    if path.is_file():
        own = shlex.quote(str(in_checkout(path.parent)))
        return f"{folder.config}: model.adapter is {path}: a file; {take}{own}` takes its folder"
    for other in (Path.cwd() / named, folder.path / named):
        if other.is_dir():
            found = shlex.quote(str(other.resolve()))
            return f"{gone}paths in run.toml start at the checkout; {take}{found}` takes this one"
    if (source := _run_around(path)) is not None:
        return gone + _of_a_run(source, path, take)
    if (hub := downloading(named)) is not None:
        download, own = hub
        return f"{gone}if it is a hub id, `{download}` downloads it and {take}{own}` takes it"
    kind = "tool calls" if config.envs else "shell tasks"
    return (
        f"{gone}`{making(folder, config, named)}` makes a start for {kind}, or name a LoRA adapter"
        f" for {config.model.path}"
    )


def _run_around(path: Path) -> RunFolder | None:
    """The run in whose folder this path is, or would be by the name of a step; None without one."""
    for above in path.parents:
        if (run := RunFolder(above)).config.is_file():
            return run
    return RunFolder(path.parents[1]) if is_step(path.parent.name) else None


def _of_a_run(source: RunFolder, path: Path, take: str) -> str:
    """What to do about a run's adapter that is not here. Only training may write one there: another
    would pass for the result of a night that nobody played. take: the command that takes another
    adapter, but for its path."""
    if not source.config.is_file():
        return f"it would be of the run {source.typed}, which is not here; name another adapter"
    done = range(source.finished_steps())
    if path not in {source.adapter(n) for n in done}:
        have = f"of the finished ones 0 to {done[-1]}" if done else "of which none is finished"
        return (
            f"the run {source.typed} has its adapters in the folders of its steps, {have};"
            f" `grpo run {source.typed}` trains further ones"
        )
    kept = [n for n in done if source.adapter(n).is_dir()]
    if kept:
        other = shlex.quote(str(in_checkout(source.adapter(kept[-1]))))
        return f"the run {source.typed} has kept that of step {kept[-1]}: {take}{other}` takes it"
    again = shlex.quote(str(in_checkout(source.again.path / path.relative_to(source.path))))
    return (
        f"the run {source.typed} has no weights in this copy. {source.how_to_play_again}, and"
        f" {take}{again}` takes what it makes"
    )


def downloading(named: str) -> tuple[str, str] | None:
    """The command that downloads an adapter from a model hub, and the folder below the checkout
    where it puts it; None for what is no hub id: one whose first word is a folder of the checkout
    is a path."""
    if not may_be_hub_id(named) or from_checkout(named.partition("/")[0]).exists():
        return None
    own = f"adapters/{named.partition('/')[2]}"
    hf = str(Path(sys.executable).with_name("hf"))
    return shlex.join([hf, "download", named, "--local-dir", str(ROOT / own)]), own


_CONVERSATION = tuple(
    {"role": role, "content": role} for role in ("system", "user", "assistant", "user")
)


def learned_another_template(folder: RunFolder, config: RunConfig, model_dir: Path) -> str | None:
    """That the adapter's folder has a chat template which writes a conversation otherwise than the
    model's, with the command that takes it; None where there is none, where it writes the same, or
    where run.toml names a template.

    Trainers leave the template there that they trained with. Under another one an adapter still
    answers, only worse. Raises as `chat_renderer`.
    """
    model, theirs = config.model, own_template(from_checkout(config.model.adapter))
    if model.chat_template or not theirs:
        return None
    taken = replace(model, chat_template=model.adapter, chat_template_kwargs={})
    try:
        other = chat_renderer(taken, model_dir)
    except BadInput:  # this model cannot speak it
        return None
    ours = chat_renderer(replace(model, chat_template_kwargs={}), model_dir)
    talks = _CONVERSATION, _CONVERSATION[1:]  # some templates add a system text of their own
    if all(other.opening_ids(talk) == ours.opening_ids(talk) for talk in talks):
        return None
    take = f"--set {shlex.quote(f'model.chat_template={model.adapter}')}"
    if not config.is_one_arm:  # which is evaluated by a command of other words
        take = f"grpo run {folder.typed}{config.flags} {take}"
    return (
        f"{model.adapter} has a chat template beside it that is not the model's; if the adapter was"
        f" trained with it, `{take}` takes it"
    )


def calls_no_tool(folder: RunFolder, config: RunConfig) -> str | None:
    """That the run has environments and starts from the default adapter, with the commands that
    make and take another; None where it does not."""
    default = ModelSettings().adapter
    if not config.envs or config.model.adapter != default:
        return None
    own, base = f"adapters/{folder.name}", config.model.path
    said = (
        f"{default} writes shell commands and calls no tool of {', '.join(config.envs)};"
        f" `{making(folder, config, own)}` makes another start, and `grpo run {folder.typed} --set"
        f" model.adapter={own}` takes it (docs/environments.md, A run)"
    )
    if base == DEFAULT_MODEL and not _has_oracle(config):
        said += (
            f". {base} calls no tool by itself either: `oracle` in [envs.{next(iter(config.envs))}]"
            " of run.toml names a function whose calls it can learn, or name another model"
            " (`--set model.path=MODEL`)"
        )
    return said


def making(folder: RunFolder, config: RunConfig, adapter: str) -> str:
    """The command that makes an adapter for this run: of environments from their oracle, or else
    one that changes nothing yet. adapter: as run.toml names it."""
    words = ["grpo", "sft", _typed(adapter)]
    if _has_oracle(config):
        pool = Path(config.data.pool)
        more = pool.with_name(_DEMONSTRATIONS)
        tasks = more if from_checkout(str(more)).is_file() else pool
        words += ["--oracle", _typed(str(tasks)), "--run"]
        lora = [word for layer in _ORACLE_LAYERS for word in ("--lora", layer)]
        return f"{shlex.join(words)} {folder.typed} {shlex.join(lora)}"
    base = config.model.path
    if config.envs:
        words.append("--fresh")
    elif base != DEFAULT_MODEL:  # ten times as large a rate is the small model's own
        words += ["--lr", "2e-4"]
    return shlex.join(words if base == DEFAULT_MODEL else [*words, "--model", base])


def _has_oracle(config: RunConfig) -> bool:
    return any(env.oracle for env in config.envs.values())


def _typed(path: str) -> str:
    """A path of run.toml as a command takes it: those start in the current folder."""
    return path if Path.cwd() == ROOT else str(from_checkout(path))
