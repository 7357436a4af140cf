"""The nouns of the loop: what its programs hand to each other.

Rollout and trainer are separate programs that meet only in files, so these records are the
interface between them. They are frozen and hold no behaviour beyond what follows from their own
fields. `fieldkit.codec` writes and reads them. Not advertised as part of fieldkit's public surface.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field

from fieldkit.eval.grade import Grade


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
    REPLY_CUT = "REPLY_CUT"
    """A reply reached its longest length before a call was whole, where no call ends the
    episode."""

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

    For the `clawgym` environment `info` holds ClawGym's keys: workspace_seed and
    verifiable_assertions, and it may hold persona, intent, skills_required, difficulty,
    estimated_steps, which describe the task, and `oracle`, the commands that solve it.
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

    task_id: Annotated[str, AfterValidator(sys.intern)]
    signal: Signal
    """Of the work and of ending by itself: SATURATED or STUCK also where rewards differ by turns
    alone."""
    passed: int
    played: int
    """Attempts that had room for a reply, of which `passed` passed; K in older records."""
    left_out: bool = False
    """As in `RolloutGroup`."""

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

    Rollout figures are means over all trajectories that were played; losses and the rest are the
    trainer's, and None for step 0 and for a step without signal.
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


_ALL: Any = (
    Task,
    Sampling,
    Action,
    Turn,
    Trajectory,
    RolloutGroup,
    EnvSummary,
    AtStop,
    StepSummary,
    Grade,
)
for _cls in _ALL:
    _cls.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


def in_common(before: Sequence[int], ids: Sequence[int]) -> int:
    """How many ids two sequences of one type begin with alike."""
    least, most = 0, min(len(before), len(ids))
    if before[:most] == ids[:most]:  # as where a prompt goes on from the one before it
        return most
    while least < most:  # halves are compared in C, ids one by one would not be
        middle = (least + most + 1) // 2
        if before[least:middle] == ids[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


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
