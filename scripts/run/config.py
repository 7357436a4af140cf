"""run.toml as one frozen `RunConfig`, read strictly.

Settings live with what they set (`RolloutSettings` in rollout, `TrainerSettings` in trainer, …);
here they are composed, one TOML table each, and `fieldkit.settings` reads them by their fields
alone. This module only holds what the person asked for; it decides nothing about a run.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Le, Lt
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from fieldkit.codec import plain
from fieldkit.errors import BadInput
from fieldkit.records import Task
from fieldkit.settings import (
    Change,
    Choice,
    NoCondition,
    Unit,
    read_tables,
    retired_keys,
    settings,
)
from fieldkit.training.advantages import Scale
from reward.credit import CREDITS
from reward.pool import PoolSettings
from reward.shaping import RewardSettings
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.draw.rules import WEIGHTS
from rollout.engine.engine_settings import EngineSettings
from rollout.envs.base import Site
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.tool_calls import TOOL_FORMS
from rollout.sandbox.command import SandboxKind, SandboxSettings
from rollout.settings import RolloutSettings
from scripts.base.checkout import ROOT
from scripts.run.folder import RunFolder
from trainer.settings import TrainerSettings

UNPROTECTED = (
    "--sandbox none: there is no sandbox; the policy's commands run as you, with your files and "
    "your network"
)
"""The red warning of every command that plays without a sandbox."""


def play_flags(kind: str) -> str:
    """The flags after RUN, with a space before them, in a next command that plays in this kind of
    sandbox. "none" is never a default, so it is typed each time."""
    return " --sandbox none" if kind == "none" else ""


_ENV_NAME = re.compile(r"[a-z][a-z0-9_-]*")

MINUTES_A_YEAR = 365 * 24 * 60
"""More than that is a slip of the hand."""


OnConverged = Literal["stop", "grow", "harder"]


@settings("run")
class NightSettings:
    """How long the night is, and what is evaluated during it."""

    steps: Annotated[NonNegativeInt | Literal["auto"], Change.LENGTH] = "auto"
    """The number of GRPO steps, or "auto": as many as fit into `minutes` at the measured speed."""
    minutes: Annotated[PositiveFloat, Le(MINUTES_A_YEAR), Unit("minutes"), Change.LENGTH] = 45.0
    """The time that "auto" plans for, evaluations included."""
    eval_every: Annotated[NonNegativeInt, Change.LENGTH] = 25
    """Steps between evaluations on the held-out set; 0: only at the start and the end."""
    on_converged: Annotated[OnConverged, Change.LENGTH] = "stop"
    """What happens when the pool has converged: "stop" ends the night with exit code 3; "grow" adds
    the next tasks of reserve.jsonl beside the pool, as many as the pool's file has, to this run;
    "harder" adds those first that are like tasks which still teach, or are stuck."""
    stop_when_flat: Annotated[bool, Change.LENGTH] = False
    """End the night before its last step once the mean reward has risen and the last quarter of the
    steps, at least 8, brings less than a quarter of the gain, with 99 % confidence
    (`reward.plateau`)."""
    overlap: Annotated[int, Ge(0), Le(1)] = 0
    """1: the next step's episodes are played while a step is trained, by the adapter of one step
    earlier; importance weights correct for that (docs/engines.md). It needs an engine that stays
    while the trainer works. 0: the newest adapter plays, and playing and training take turns."""
    preflight: bool = True
    """Play a few groups before the night, and stop if their rewards have no signal."""
    seed: Annotated[int, Ge(0), Lt(2**31)] = 0
    """The run's seed: the order of tasks and every sampling seed follow from it."""
    wandb: Annotated[bool, Change.LENGTH] = False
    """Also send the figures of every step to Weights & Biases (TensorBoard's are always
    written)."""


class _ToolForms(Mapping[str, object]):
    """The names that `model.tool_form` takes: those of the registry, and "auto"."""

    def __getitem__(self, name: str) -> object:
        return _AUTO if name == "auto" else TOOL_FORMS[name]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(["auto"], TOOL_FORMS)

    def __len__(self) -> int:
        return 1 + len(TOOL_FORMS)


_AUTO = SimpleNamespace(meaning="the form that the chat template shows")


@settings("model")
class ModelSettings:
    """The model and the adapter. Relative paths start at the checkout."""

    path: str = "smol"
    """"smol" for the default model, "gemma3-270m" (`grpo model NAME` builds both), a model folder,
    or a hub id."""
    adapter: str = "adapters/smol-warm"
    """The LoRA adapter that the run starts from; it stays the reference of the KL."""
    chat_template: str = ""
    """A file with a chat template that replaces the model's own, such as one with tools; or a
    folder with a tokenizer that has one, such as an adapter's."""
    chat_template_kwargs: dict[str, bool | int | str] = field(default_factory=dict)
    """Variables of the chat template, such as `{ enable_thinking = false }`."""
    tool_form: Annotated[str, Choice(_ToolForms())] = "auto"
    """How tools are called, in worlds that have tools; "auto": as the chat template shows it."""


DEVELOPMENT = "data/development.jsonl"
"""The tasks on which settings are chosen."""


@settings("data")
class DataSettings:
    """The tasks. Relative paths start at the checkout."""

    pool: str = "data/pool.jsonl"
    """The tasks to train on."""
    heldout: str = "data/heldout.jsonl"
    """The tasks to evaluate on, which are never trained on. Use data/development.jsonl while you
    choose settings."""
    final: str = "data/final.jsonl"
    """The tasks for a last evaluation, when all settings are chosen; never trained on. "": there
    are none. A pool in another folder does not need the default file."""
    mix: dict[str, float] = field(default_factory=dict)
    """The share of each environment in a step's tasks, such as `{ sql = 0.5, clawgym = 0.5 }`.
    Without it tasks are drawn from the whole pool."""

    def __post_init__(self) -> None:
        for env, share in self.mix.items():
            if share <= 0:
                raise BadInput(
                    f"data.mix: the share of {env!r} is {share:g}; it must be above 0, and an"
                    " environment that is not to be played is left out, with its tasks"
                )


@settings("advantages")
class AdvantageSettings:
    """How a group's rewards become advantages."""

    scale: Scale = "std"
    """"std" divides by the group's standard deviation; "mean" does not divide."""
    credit: Annotated[str, Choice(CREDITS)] = "turn"
    """"turn" credits each turn with the reward after it; "episode" gives all turns of an episode
    the same advantage; "state" (GiGPO) compares turns at which the same share of the work was done
    (without reported progress: turns of the same number); "rloo" is "episode" against the mean of
    the other episodes, and needs scale = "mean"."""

    def __post_init__(self) -> None:
        if self.credit == "rloo" and self.scale != "mean":
            raise BadInput(
                f'advantages.credit: "rloo" divides by nothing, and scale is "{self.scale}"; write'
                ' scale = "mean" in [advantages], or set another credit'
            )


AUTO: Final = "auto"
"""The value of a key that the run settles when it starts."""
MOST_TASKS, FEWEST_TASKS = 48, 24
"""Held-out tasks of eval.tasks = "auto". Of 24 tasks a gain of a quarter, with no loss, is proven
(McNemar's exact test on six pairs: p = 0.031); fewer tasks show only larger changes."""


@settings("eval")
class EvalSettings:
    """How an arm is evaluated."""

    temperature: Annotated[PositiveFloat, Le(2)] = 0.2
    """Sampling temperature on the held-out set (the documents' value)."""
    tasks: NonNegativeInt | Literal["auto"] = 0
    """How many tasks of the held-out file, from its first line; 0: all of them. "auto": 48, or down
    to 24 where the preflight shows that the night is too short for the steps that are usually
    needed. That is settled before the first arm is played."""
    samples: Annotated[PositiveInt, Le(1000)] = 1
    """Attempts at each task. Tables pair the first ones; above 1 there is pass@k beside them."""
    tasks_at_training_temperature: Annotated[NonNegativeInt, Change.LENGTH, NoCondition] = 16
    """How many of those tasks, from the first, an adapter also plays at rollout.temperature: there
    learning shows first. 0: none."""

    base: Annotated[Literal["start", "end", "never"], Change.LENGTH, NoCondition] = "start"
    """When the base model plays the held-out tasks. "end": after the newest adapter, if the time
    that is left suffices (`grpo eval RUN` plays it later). No verdict depends on it."""

    def of(self, heldout: tuple[Task, ...]) -> tuple[Task, ...]:
        """The tasks of the held-out file that are played."""
        return heldout[: self.most]

    @property
    def most(self) -> int | None:
        """How many tasks are played of a file that has as many; None: all."""
        return MOST_TASKS if self.tasks == "auto" else self.tasks or None

    def settled(self, manifest: Mapping[str, Any] | None) -> EvalSettings:
        """With the number of tasks that the run settled, where run.toml leaves it to the run.
        manifest: None where the run was not started."""
        found = (manifest or {}).get("config", {}).get("eval", {}).get("tasks", AUTO)
        return self if self.tasks != AUTO else replace(self, tasks=found)


@dataclass(frozen=True)
class RunConfig:
    """Everything a run was asked to do; one field for each table of run.toml."""

    run: NightSettings = field(default_factory=NightSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    advantages: AdvantageSettings = field(default_factory=AdvantageSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    envs: dict[str, EnvSettings] = field(default_factory=dict)
    """Environments of one's own, by the name that tasks give: `[envs.NAME]`."""

    @property
    def is_one_arm(self) -> bool:
        """Whether `grpo eval` made it for one adapter or endpoint: there is no training."""
        return self.data.pool == self.data.heldout

    @property
    def flags(self) -> str:
        """The flags after RUN in a next command that plays."""
        return play_flags(self.sandbox.kind)

    def site(self, scratch: Path, tool_form: str, **more: Any) -> Site:
        """What its worlds are given, wherever they run. more: other fields of `Site`."""
        return Site(
            self.sandbox,
            scratch,
            self.rollout.protocol,
            tool_form,
            pay_implied=self.reward.pay_implied,
            **more,
        )

    def plain(self) -> dict[str, Any]:
        """The resolved form: every key with its value, JSON-ready."""
        resolved = dict(plain(self))
        if not self.envs:  # a run that does not use it is as it was before there was any
            del resolved["envs"]
        if not self.cluster.used:
            del resolved["cluster"]
        return resolved


def read_config(path: Path, sandbox: SandboxKind = "bwrap") -> RunConfig:
    """run.toml as a `RunConfig`. Raises `BadInput` that names the file and the key.

    sandbox: the kind that the command line gives. Only the command line can give "none", so that
    no line in a file turns the sandbox off.
    """
    tables = _parse_toml(path)
    config = config_of(tables, str(path))
    _refuse_long_numbers(path, tables)
    register_environments(config.envs, ROOT)
    if config.sandbox.kind == "none":
        raise BadInput(
            f'{path}: sandbox.kind is "none", which no file may say, because the policy\'s '
            "commands would run as you, unprotected. Leave the line out; to play without "
            f"a sandbox, type `grpo run {RunFolder(path.parent).typed} --sandbox none`"
        )
    return replace(config, sandbox=replace(config.sandbox, kind=sandbox))


def config_of(tables: Mapping[str, Any], where: str) -> RunConfig:
    """Parsed tables as a `RunConfig`. Raises `BadInput` that begins with `where`."""
    named = {name: table for name, table in tables.items() if name != "envs"}
    config = read_tables(RunConfig, named, where)
    moves = {  # the reward of a step without the policy
        "reward.schedule": (config.reward.schedule, "changes what is paid for the same work"),
        "rollout.draw": (config.rollout.draw in WEIGHTS, "goes on to other tasks"),
    }
    for key, (is_set, what) in moves.items():
        if config.run.stop_when_flat and is_set:
            raise BadInput(
                f"{where}: run.stop_when_flat compares the rewards of steps, and {key} {what};"
                " leave out one of them"
            )
    return replace(config, envs=_read_envs(where, tables.get("envs", {})))


def _read_envs(path: str, tables: Any) -> dict[str, EnvSettings]:
    """The environments of a file by name."""
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise BadInput(f"{path}: envs must be tables, each written [envs.NAME]")
    found = {}
    for name, values in tables.items():
        if not _ENV_NAME.fullmatch(name):
            raise BadInput(
                f"{path}: [envs.{name}]: a name has lower case letters, digits, - and _, and"
                " begins with a letter"
            )
        if {"url", "serve"} & values.keys():  # what a server is known by
            values = {"use": "", "style": "openenv", **values}
        if missing := [key for key in ("use", "passes") if key not in values]:
            raise BadInput(
                f'{path}: [envs.{name}] lacks {missing[0]}; for example use = "my_env.py:MyEnv"'
                ' and passes = "reward >= 1"'
            )
        try:
            found[name] = EnvSettings(**values)
        except BadInput as e:
            raise BadInput(f"{path}: {str(e).replace('envs.NAME', f'envs.{name}')}") from None
    return found


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; `grpo new RUN` writes one") from None
    except ValueError as e:  # a mistake, bytes that are no text, a number with too many digits
        raise BadInput(f"{path}: not valid TOML ({e})") from None
    except RecursionError:
        raise BadInput(f"{path}: not valid TOML (nested too deep)") from None


def _refuse_long_numbers(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """TOML's whole numbers have 64 bits, and so have those of the programs that read ours."""
    for name, table in tables.items():
        for key, value in table.items():
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise BadInput(f"{path}: {name}.{key}: the number has more than 64 bits")


RETIRED_KEYS = retired_keys(RunConfig)
"""Keys that only older files hold; their values are ignored."""


def flat(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved form by its dotted keys; those that only older versions knew are left out."""
    found = {f"{table}.{key}": v for table, keys in resolved.items() for key, v in keys.items()}
    return {key: value for key, value in found.items() if key not in RETIRED_KEYS}


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The dotted keys whose values differ between two resolved forms, in order of the new one."""
    was, now = flat(old), flat(new)
    return [k for k in {**now, **was} if was.get(k, MISSING) != now.get(k, MISSING)]
