"""The nouns of the loop, and the one codec that carries them between processes.

Rollout and trainer are separate programs that meet only in files, so these records are the
interface between them. They are frozen, they hold no behaviour beyond what follows from their own
fields, and they are decoded strictly: an unknown key, a missing key or a number that is not finite
is an error that names file and line. Not advertised as part of fieldkit's public surface.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.files.json_text import parse_json
from fieldkit.files.sharded import last_record, read_records

SCHEMA = 1

T = TypeVar("T")


class StopReason(StrEnum):
    """Why an episode ended. An infrastructure failure is not among them: it is an exception."""

    TASK_COMPLETE = "TASK_COMPLETE"
    """The policy said that it is done."""
    MAX_TURNS = "MAX_TURNS"
    """The last allowed turn was taken."""
    CONTEXT_FULL = "CONTEXT_FULL"
    """The next prompt plus one turn would not fit the model's context."""
    TIME_LIMIT = "TIME_LIMIT"
    """The episode's commands together took as long as they may."""
    ENV_DONE = "ENV_DONE"
    """The environment ended the episode."""

    @property
    def by_itself(self) -> bool:
        """No limit ended the episode: the policy said that it is done, or did what the environment
        ends with, such as to give its answer."""
        return self in (StopReason.TASK_COMPLETE, StopReason.ENV_DONE)


def ended_by_themselves(stops: Mapping[StopReason, int]) -> int:
    """Of episodes counted by stop reason, those that no limit ended."""
    return sum(n for reason, n in stops.items() if reason.by_itself)


class Signal(StrEnum):
    """What a group of K rollouts of one task can teach."""

    LEARNABLE = "LEARNABLE"
    """The K rewards differ."""
    SATURATED = "SATURATED"
    """The K rewards are equal and all K passed."""
    STUCK = "STUCK"
    """The K rewards are equal and not all K passed."""


class ActionKind(StrEnum):
    """What the stop protocol found in one completion."""

    RUN = "RUN"
    DONE = "DONE"
    NONE = "NONE"


class Outcome(StrEnum):
    """How a training step ended."""

    START = "START"
    TRAINED = "TRAINED"
    NO_SIGNAL = "NO_SIGNAL"


@dataclass(frozen=True)
class Task:
    """One task: the prompt that the policy sees and what the environment needs to set up and grade.

    For the `clawgym` environment `info` holds ClawGym's keys: persona, intent, workspace_seed,
    skills_required, verifiable_assertions, difficulty, estimated_steps (and `oracle`, the commands
    that solve it).
    """

    task_id: str
    env: str
    prompt: str
    info: dict[str, Any]


@dataclass(frozen=True)
class Sampling:
    """What the engine was asked to sample with. Neutral but for the temperature."""

    temperature: float
    max_tokens: int
    top_p: float
    top_k: int
    min_p: float


@dataclass(frozen=True)
class Action:
    """What a reply asked for. `command` is what to run: of RUN always, of DONE where the reply also
    holds a block (it runs first), of NONE never."""

    kind: ActionKind
    command: str


@dataclass(frozen=True)
class Turn:
    """One exchange: the exact ids the engine sampled from, the ids it sampled, and what followed.

    prompt_ids: every id of the context, from the first; P of them.
    completion_ids: the C ids that were sampled, a sampled end-of-turn among them.
    logprobs: C natural-log probabilities under the distribution that was sampled from.
    observation: the environment's answer; None only where nothing ran and the episode ended.
    exit_code: of the command; None where none ran.
    reward: the environment's own per-turn reward, None where it has none.
    policy_version: the engine's name for the adapter that sampled this turn.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    action: Action
    observation: str | None
    exit_code: int | None
    reward: float | None
    finish_reason: str
    policy_version: str
    seed: int
    seconds: float

    def __post_init__(self) -> None:
        if len(self.completion_ids) != len(self.logprobs):
            raise ValueError(
                f"{len(self.completion_ids)} completion ids but {len(self.logprobs)} logprobs"
            )


@dataclass(frozen=True)
class Trajectory:
    """One episode of one task by one adapter: number `k` of the group's K."""

    task_id: str
    k: int
    seed: int
    adapter_sha: str
    sampling: Sampling
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    grade: Grade
    reward: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class RolloutGroup:
    """K episodes of one task by the same adapter: one line of trajectory_bundle.jsonl."""

    step: int
    env: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    advantages: tuple[float, ...]
    signal: Signal
    turn_advantages: tuple[tuple[float, ...], ...] | None = None
    """Of every turn; None in older bundles, where each turn has its trajectory's."""
    left_out: bool = False
    """Played, but not trained on: another task's group took its place (`rollout.resample`)."""

    @property
    def by_turn(self) -> tuple[tuple[float, ...], ...]:
        """The advantage that each turn is trained with."""
        if self.turn_advantages is not None:
            return self.turn_advantages
        pairs = zip(self.trajectories, self.advantages, strict=True)
        return tuple((advantage,) * len(t.turns) for t, advantage in pairs)

    def __post_init__(self) -> None:
        if len(self.trajectories) != len(self.advantages):
            raise ValueError(
                f"{len(self.trajectories)} trajectories but {len(self.advantages)} advantages"
            )
        if self.turn_advantages is not None:
            n_turns = [len(t.turns) for t in self.trajectories]
            found = [len(a) for a in self.turn_advantages]
            if found != n_turns:
                raise ValueError(f"turns: {n_turns}, but turn_advantages: {found}")
        ks = [t.k for t in self.trajectories]
        if ks != list(range(len(ks))):
            raise ValueError(f"trajectories must be k = 0..K-1 in order, got {ks}")
        if any(t.task_id != self.task_id for t in self.trajectories):
            raise ValueError(f"a trajectory of another task is in the group of {self.task_id}")
        if len({t.adapter_sha for t in self.trajectories}) > 1:
            raise ValueError("the trajectories of a group come from different adapters")


@dataclass(frozen=True, slots=True)
class Draw:
    """What one group of a step said about its task. A long run has hundreds of thousands."""

    task_id: str
    signal: Signal
    """Of the work and of ending by itself: SATURATED or STUCK also where rewards differ by turns
    alone."""
    passed: int
    played: int
    """K, of which `passed` passed."""
    left_out: bool = False
    """As in `RolloutGroup`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_id", sys.intern(self.task_id))

    @property
    def mixed(self) -> bool:
        """Whether some attempts passed and some did not."""
        return 0 < self.passed < self.played


@dataclass(frozen=True)
class EnvSummary:
    """The rollout figures of a step's attempts in one environment: means, as in `StepSummary`."""

    n_trajectories: int
    mean_reward: float
    pass_rate: float
    assertion_rate: float
    stop_rate: float
    mean_turns: float
    mean_tokens: float


@dataclass(frozen=True)
class AtStop:
    """Of a step's attempts that are graded by assertions: those that no limit ended."""

    n: int
    passed: int
    idle: int
    """With nothing done: no more assertions hold than at the start."""


@dataclass(frozen=True)
class StepSummary:
    """A finished step: step.json. A step is done when it is there.

    Rollout figures are means over the B*K trajectories; losses and the rest are the trainer's, and
    None for step 0 and for a step without signal.
    """

    step: int
    outcome: Outcome
    parent_sha: str | None
    adapter_sha: str
    optimizer_sha: str | None
    bundle_sha: str | None
    n_trajectories: int
    mean_reward: float | None
    pass_rate: float | None
    assertion_rate: float | None
    stop_rate: float | None
    mean_turns: float | None
    mean_tokens: float | None
    groups: dict[str, int]
    train: dict[str, float]
    seconds: dict[str, float]
    draws: tuple[Draw, ...] = ()
    """Of every group that was played, in the order of the bundle; empty in older steps."""
    environments: Annotated[dict[str, EnvSummary], Field(exclude_if=lambda envs: not envs)] = field(
        default_factory=dict
    )
    """By environment, of those that the step played; empty in a run with one environment."""
    at_stop: Annotated[AtStop | None, Field(exclude_if=lambda at_stop: at_stop is None)] = None
    """None where no attempt's progress is known, and in older steps."""

    def in_env(self, env: str) -> StepSummary | None:
        """The step's attempts in one environment alone, without what is not known by environment;
        None where it played none."""
        if (own := self.environments.get(env)) is None:
            return None
        return replace(
            self,
            **vars(own),
            groups={},
            train={},
            seconds={},
            draws=(),
            environments={},
            at_stop=None,
        )


_ALL: Any = (Task, Sampling, Action, Turn, Trajectory, RolloutGroup, EnvSummary, StepSummary, Grade)
for _cls in _ALL:
    _cls.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(cls: type) -> TypeAdapter[Any]:
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def plain(record: Any) -> Any:
    """A record as JSON-ready plain values (tuples become lists, enums their text)."""
    return _adapter(type(record)).dump_python(record, mode="json")


def from_plain(cls: type[T], value: Any, where: str) -> T:
    """Plain values as a record, checked key by key. Raises `BadInput` that begins with `where`."""
    try:
        record: T = _adapter(cls).validate_python(value)
        return record
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(p) for p in first["loc"]) or "record"
        raise BadInput(f"{where}: {key}: {first['msg']} ({e.error_count()} problem(s))") from None


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _loads(text: str, where: str) -> Any:
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise BadInput(f"{where}: expected an object, found {type(value).__name__}")
    schema = value.pop("schema", None)
    if schema != SCHEMA:
        raise BadInput(f"{where}: schema is {schema!r}, this version reads {SCHEMA}")
    return value


# Each turn's prompt repeats the whole conversation so far. On disk a turn keeps how many ids it
# shares with the previous prompt + completion (`prefix_len`) and the ids after them.


def _shorten(trajectory: dict[str, Any]) -> dict[str, Any]:
    seen: list[int] = []
    turns = []
    for turn in trajectory["turns"]:
        ids = turn["prompt_ids"]
        shared = len(seen)
        if ids[:shared] != seen:  # the ids of another segment, or with their tail rewritten
            pairs = enumerate(zip(seen, ids, strict=False))
            shared = next((i for i, (a, b) in pairs if a != b), min(len(seen), len(ids)))
        rest = {k: v for k, v in turn.items() if k != "prompt_ids"}
        turns.append({"prefix_len": shared, "prompt_suffix": ids[shared:], **rest})
        seen = [*ids, *turn["completion_ids"]]
    return {**trajectory, "turns": turns}


def _lengthen(trajectory: Any, where: str) -> Any:
    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("turns"), list):
        raise BadInput(f"{where}: turns: expected a list")
    seen: list[int] = []
    turns = []
    for i, turn in enumerate(trajectory["turns"]):
        if not isinstance(turn, dict):
            raise BadInput(f"{where}: turns.{i}: expected an object")
        rest = dict(turn)
        shared, suffix = rest.pop("prefix_len", None), rest.pop("prompt_suffix", None)
        if not isinstance(shared, int) or not isinstance(suffix, list):
            raise BadInput(f"{where}: turns.{i}: prefix_len and prompt_suffix are needed")
        if not 0 <= shared <= len(seen):
            raise BadInput(
                f"{where}: turns.{i}: prefix_len {shared} but only {len(seen)} ids came before"
            )
        ids = seen[:shared] + suffix
        turns.append({"prompt_ids": ids, **rest})
        completion = turn.get("completion_ids")
        seen = ids + (completion if isinstance(completion, list) else [])
    return {**trajectory, "turns": turns}


def encode_trajectory(trajectory: Trajectory) -> str:
    """One JSON line (no newline)."""
    return _dumps({"schema": SCHEMA, **_shorten(plain(trajectory))})


def decode_trajectory(line: str, where: str) -> Trajectory:
    """Inverse of `encode_trajectory`; raises `BadInput` that begins with `where`."""
    return from_plain(Trajectory, _lengthen(_loads(line, where), where), where)


def encode_group(group: RolloutGroup) -> str:
    """One line of trajectory_bundle.jsonl (no newline)."""
    value = plain(group)
    value["trajectories"] = [_shorten(t) for t in value["trajectories"]]
    if not group.left_out:  # a bundle without such groups is what it always was
        del value["left_out"]
    return _dumps({"schema": SCHEMA, **value})


def decode_group(line: str, where: str) -> RolloutGroup:
    """Inverse of `encode_group`; raises `BadInput` that begins with `where`."""
    value = _loads(line, where)
    if not isinstance(value.get("trajectories"), list):
        raise BadInput(f"{where}: trajectories: expected a list")
    value["trajectories"] = [
        _lengthen(t, f"{where}: trajectories.{i}") for i, t in enumerate(value["trajectories"])
    ]
    return from_plain(RolloutGroup, value, where)


def encode(record: Any) -> str:
    """Any other record (Task, StepSummary) as one JSON line."""
    return _dumps({"schema": SCHEMA, **plain(record)})


def decode(cls: type[T], text: str, where: str) -> T:
    """Inverse of `encode`."""
    return from_plain(cls, _loads(text, where), where)


def bundle_groups(path: Path) -> Iterator[RolloutGroup]:
    """The groups of a trajectory_bundle.jsonl, or of its shards, one after another in order.

    Raises `BadInput` as `read_records`, and for a line that is no group.
    """
    return (decode_group(line, where) for where, line in read_records(path))


def read_bundle(path: Path) -> tuple[RolloutGroup, ...]:
    """Every group of a bundle at once, for what needs all of them. Raises as `bundle_groups`."""
    return tuple(bundle_groups(path))


def last_group(path: Path) -> RolloutGroup | None:
    """The last group of a bundle; None where there is no bundle, or no group in it."""
    found = last_record(path)
    return None if found is None else decode_group(found[1], found[0])


def stored_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a JSONL file, or of its shards, one after another in order; a torn last
    line is left out. Raises as `bundle_groups`."""
    return (decode_trajectory(line, where) for where, line in read_records(path))


def read_trajectories(path: Path) -> tuple[Trajectory, ...]:
    """Every trajectory at once, for what needs all of them. Raises as `bundle_groups`."""
    return tuple(stored_trajectories(path))


def segments(turns: tuple[Turn, ...]) -> list[list[Turn]]:
    """Turns grouped so that within a segment each prompt extends the previous prompt + completion.

    A segment can be scored with one forward pass over its last turn's prompt + completion.
    """
    out: list[list[Turn]] = []
    seen: tuple[int, ...] | None = None
    for turn in turns:
        if seen is not None and turn.prompt_ids[: len(seen)] == seen:
            out[-1].append(turn)
        else:
            out.append([turn])
        seen = turn.prompt_ids + turn.completion_ids
    return out
