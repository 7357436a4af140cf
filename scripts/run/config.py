"""run.toml as one frozen `RunConfig`, read strictly.

Settings live with what they set (`RolloutSettings` in rollout, `TrainerSettings` in trainer, …);
here they are composed, one TOML table each, by their dataclass fields alone. An unknown key, a
wrong type or two keys that must agree and do not are `BadInput` naming table, key and file. This
module decides nothing about a run: it only says what the person asked for.
"""

from __future__ import annotations

import difflib
import math
import sys
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fieldkit.errors import BadInput
from fieldkit.records import Task
from fieldkit.training.advantages import Scale
from reward.credit import Credit
from reward.pool import PoolSettings
from reward.shaping import RewardSettings
from rollout.engine.vllm_server import EngineSettings
from rollout.sandbox.command import SandboxSettings
from rollout.settings import RolloutSettings
from scripts.run.folder import RunFolder
from trainer.settings import TrainerSettings

T = TypeVar("T")

SandboxKind = Literal["bwrap", "none"]

UNPROTECTED = (
    "--sandbox none: there is no sandbox; the policy's commands run as you, with your files and "
    "your network"
)
"""What is told in red wherever something is played like that."""


def play_flags(kind: str) -> str:
    """What has to stand behind RUN, with a space before it, in a next command that plays in this
    kind of sandbox: none is never a default, so it is typed each time."""
    return " --sandbox none" if kind == "none" else ""


@dataclass(frozen=True)
class NightSettings:
    """How long the night is and what is looked at on the way. The table [run]."""

    steps: int | Literal["auto"] = "auto"
    """GRPO steps in all, or "auto": as many as fit into `minutes` at the measured speed."""
    minutes: float = 45.0
    """What "auto" plans for, evaluations included."""
    eval_every: int = 25
    """Steps between evaluations on the held-out set; 0: only at the start and the end."""
    preflight: bool = True
    """Play a few groups before the night and stop if their rewards carry no signal."""
    seed: int = 0
    """The run's seed: the order of tasks and every sampling seed follow from it."""
    wandb: bool = False
    """Send the figures of every step to Weights & Biases too (TensorBoard's are always written)."""

    def __post_init__(self) -> None:
        if self.steps != "auto" and self.steps < 0:
            raise BadInput(f'run.steps: {self.steps} must be 0 or more, or "auto"')
        if not 0 < self.minutes < math.inf:
            raise BadInput(f"run.minutes: {self.minutes} must be more than 0, and finite")
        if self.eval_every < 0:
            raise BadInput(f"run.eval_every: {self.eval_every} must be 0 or more")
        if not 0 <= self.seed < 2**31:
            raise BadInput(f"run.seed: {self.seed} must lie in 0..2^31-1")


@dataclass(frozen=True)
class ModelSettings:
    """What is trained. The table [model]. Relative paths start at the checkout."""

    path: str = "smol"
    """"smol" for the default model (built by `grpo model`), a model folder, or a hub id."""
    adapter: str = "adapters/smol-warm"
    """The LoRA adapter that the run starts from; it stays the reference of the KL."""


@dataclass(frozen=True)
class DataSettings:
    """The tasks. The table [data]. Relative paths start at the checkout."""

    pool: str = "data/pool.jsonl"
    """What is trained on."""
    heldout: str = "data/heldout.jsonl"
    """What is evaluated on, and never trained on."""


@dataclass(frozen=True)
class AdvantageSettings:
    """How a group's rewards become advantages. The table [advantages]."""

    scale: Scale = "std"
    """"std" divides by the group's standard deviation; "mean" keeps how far apart rewards were."""
    credit: Credit = "turn"
    """"turn" credits each turn with what came of it; "episode" gives all turns of one the same."""


@dataclass(frozen=True)
class EvalSettings:
    """How an arm is evaluated. The table [eval]."""

    temperature: float = 0.2
    """Sampling temperature on the held-out set (the documents' value)."""
    tasks: int = 0
    """How many tasks of the held-out file, from its first line; 0: all of them."""
    samples: int = 1
    """Attempts at each task. Tables pair the first ones; above 1 there is pass@k beside them."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= 2:
            raise BadInput(f"eval.temperature: {self.temperature} must be above 0 and at most 2")
        if self.tasks < 0:
            raise BadInput(f"eval.tasks: {self.tasks} must be 0 (all) or more")
        if self.samples < 1:
            raise BadInput(f"eval.samples: {self.samples} must be at least 1")

    def of(self, heldout: tuple[Task, ...]) -> tuple[Task, ...]:
        """The tasks of the held-out file that are played."""
        return heldout[: self.tasks] if self.tasks else heldout


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
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)

    @property
    def flags(self) -> str:
        """What has to stand behind RUN in a next command that plays."""
        return play_flags(self.sandbox.kind)

    def plain(self) -> dict[str, Any]:
        """The resolved form: every key with its value, JSON-ready."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


# One value, two readers: rollout samples at the temperature that the trainer divides by, and so on.
# (table, key) of the follower <- (table, key) that a person sets. A follower given in run.toml must
# agree; left out, it follows.
LINKED: tuple[tuple[tuple[str, str], tuple[str, str]], ...] = (
    (("trainer", "temperature"), ("rollout", "temperature")),
    (("trainer", "seed"), ("run", "seed")),
    (("rollout", "run_seed"), ("run", "seed")),
    (("rollout", "max_model_len"), ("engine", "max_model_len")),
    (("reward", "max_turns"), ("rollout", "max_turns")),
)


def read_config(path: Path, sandbox: SandboxKind = "bwrap") -> RunConfig:
    """run.toml as a `RunConfig`. Raises `BadInput` that names the file and the key.

    sandbox: the kind that the command line says. "none" is said there and nowhere else, so that
    nobody plays without a sandbox because of a line that somebody wrote into a file.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; `grpo new RUN` writes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{path}: not valid TOML ({e})") from None
    config = config_from_tables(tables, str(path))
    if config.sandbox.kind == "none":
        raise BadInput(
            f'{path}: sandbox.kind is "none", which no file may say, because the policy\'s '
            "commands would run as you, unprotected. Leave the line out; who wants that types it: "
            f"`grpo run {RunFolder(path.parent).typed} --sandbox none`"
        )
    return replace(config, sandbox=replace(config.sandbox, kind=sandbox))


def config_from_tables(tables: Mapping[str, Any], where: str) -> RunConfig:
    """Parsed TOML as a `RunConfig`; `where` begins every error."""
    values = {}
    for name, cls in get_type_hints(RunConfig).items():
        values[name] = _table(cls, tables.get(name, {}), where, name)
    _refuse_unknown(tables, [f.name for f in fields(RunConfig)], where, "table")
    return _linked(RunConfig(**values), tables, where)


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys whose values differ between two resolved forms, in order of the new one."""
    keys: list[str] = []
    for key in dict.fromkeys((*new, *old)):
        a, b = old.get(key, MISSING), new.get(key, MISSING)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            keys += changed_keys(a, b, f"{prefix}{key}.")
        elif a != b:
            keys.append(prefix + key)
    return keys


def _table(cls: type[T], table: Any, where: str, name: str) -> T:
    if not isinstance(table, dict):
        raise BadInput(f"{where}: {name} must be a table, written [{name}]")
    hints = get_type_hints(cls)
    _refuse_unknown(table, list(hints), f"{where}: [{name}]", "key")
    values = {
        key: _convert(hints[key], value, f"{where}: {name}.{key}") for key, value in table.items()
    }
    try:
        return cls(**values)
    except BadInput as e:
        raise BadInput(f"{where}: {e}") from None
    except (TypeError, ValueError) as e:
        raise BadInput(f"{where}: [{name}]: {e}") from None


def _refuse_unknown(table: Mapping[str, Any], known: list[str], where: str, what: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise BadInput(f"{where}: unknown {what} {key!r}; {hint}")


def _convert(kind: Any, value: Any, where: str) -> Any:
    """A TOML value as the type that a settings field declares."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(kind, value, where)
    if origin is Literal:
        return _one_of(get_args(kind), value, where)
    if origin is tuple:
        return _convert_tuple(kind, value, where)
    if kind is type(None):
        raise BadInput(f"{where}: {value!r} is not allowed here")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_one_of(tuple(member.value for member in kind), value, where))
    return _convert_plain(kind, value, where)


def _convert_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) in (int, float):
        # No setting means anything by inf, and no JSON that a run writes could hold it.
        if not abs(value) <= sys.float_info.max:
            raise BadInput(f"{where}: expected a finite number, found {_shown(value)}")
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    # bool is a subclass of int in Python; in a settings file true is no number
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadInput(f"{where}: expected {_type_name(kind)}, found {_shown(value)}")
    return value


def _convert_tuple(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise BadInput(f"{where}: expected a list, found {_shown(value)}")
    item = get_args(kind)[0]
    return tuple(_convert(item, v, f"{where}[{i}]") for i, v in enumerate(value))


def _convert_union(kind: Any, value: Any, where: str) -> Any:
    for option in get_args(kind):
        try:
            return _convert(option, value, where)
        except BadInput:
            continue
    wanted = " or ".join(_type_name(o) for o in get_args(kind) if o is not type(None))
    raise BadInput(f"{where}: expected {wanted}, found {_shown(value)}")


def _one_of(known: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in known:
        return value
    near = difflib.get_close_matches(str(value), [str(k) for k in known], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(repr(k) for k in known)
    raise BadInput(f"{where}: expected one of {listed}, found {_shown(value)}{hint}")


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(a) for a in get_args(kind))
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _shown(value: Any) -> str:
    return f"{value!r} ({_type_name(type(value))})"


def _linked(config: RunConfig, tables: Mapping[str, Any], where: str) -> RunConfig:
    """Bring every follower to its leader's value; both given and different is an error."""
    for (table, key), (leader_table, leader_key) in LINKED:
        value = getattr(getattr(config, leader_table), leader_key)
        settings = getattr(config, table)
        if key in tables.get(table, {}) and getattr(settings, key) != value:
            raise BadInput(
                f"{where}: {table}.{key} is {getattr(settings, key)!r} but "
                f"{leader_table}.{leader_key} is {value!r}; they are one value: leave out "
                f"{table}.{key}"
            )
        config = replace(config, **{table: _replaced(settings, key, value, where)})
    return config


def _replaced(settings: Any, key: str, value: Any, where: str) -> Any:
    try:
        return replace(settings, **{key: value})
    except (BadInput, ValueError) as e:
        raise BadInput(f"{where}: {e}") from None


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in asdict(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
