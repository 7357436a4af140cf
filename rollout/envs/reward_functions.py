"""Reward functions as TRL's trainers take them: about one attempt, or about a group of them.

A function of `rewards` is called when an attempt has ended. It gets `prompts`, `completions`,
`environments` and every column of the row, each as a list of one. It returns a list of one: a
number, or None if it does not apply. It may be a coroutine. What it says to TRL's `log_metric` is
shown as a part of weight 0; it may call `log_extra`, whose columns are not kept. Any other value is
an error that names the function. If a function raises or takes too long, the grader is broken: the
episode is played again, and then the phase fails. If it returns something other than a number, that
is bad input, because another attempt would not change it.

A function that compares attempts (`group_rewards`) gets those of a group in one call, after the
last has ended. It gets the stored attempts and no `environments`, because an attempt is stored when
it ends and its environment does not survive a kill. An evaluation has no groups and no such parts.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.records import Task, Trajectory
from reward.group_signal import was_late
from rollout.envs.base import Message
from rollout.envs.env_settings import EnvSettings
from rollout.envs.in_thread import PinnedThread, asked
from rollout.envs.tool_world import judged, messages_of, row_of
from rollout.envs.user_code import load, place_of

OWN = "get_reward"
"""The method of an environment that gives one more part, `OWN_PART`."""
OWN_PART = "reward"


def own_part(thing: Any) -> str:
    """The part that a class gives itself; empty if it has no `OWN`."""
    return OWN_PART if callable(getattr(thing, OWN, None)) else ""


@dataclass(frozen=True)
class RewardFunction:
    """One function and its weight."""

    name: str
    call: Callable[..., Any]
    weight: float

    def misfit(self, row: Iterable[str], environments: bool = True) -> str:
        """Why the function cannot be called with the columns of a row; empty if it can.
        environments: whether it gets `environments` too."""
        columns = [column for column in row if column != "prompt"]
        given = {*columns, "prompts", "completions", *(["environments"] if environments else ())}
        parameters = inspect.signature(self.call).parameters
        needed = {
            name
            for name, p in parameters.items()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        why = ""
        if missing := sorted(needed - given - {"log_metric", "log_extra"}):
            why = f"needs the column {', '.join(missing)}, and the row has"
            why += f" {', '.join(columns) or 'none'}: name rows that have it, or give a default"
        elif further := sorted(name for name in given if not _takes(self.call, name)):
            why = "takes no `**columns`: add it, because it is called with"
            why += f" {', '.join(further)} too"
        return f"reward function {self.name} {why} ({place_of(self.call) or '?'})" if why else ""

    async def of(
        self,
        prompt: Sequence[Message],
        completion: Sequence[Message],
        environment: Any,
        row: Mapping[str, Any],
        seconds: float,
        where: str,
        thread: PinnedThread | None = None,
    ) -> list[RewardPart]:
        """Its value for one attempt, computed in the environment's thread, and behind it the
        metrics that it logged, as parts of weight 0. Raises as `asked`, and `BadInput` that begins
        with `where` for a value that is not a reward."""
        logged: dict[str, Any] = {}
        (value,) = await self.of_all(
            [prompt], [completion], row, seconds, where, [environment], thread, logged
        )
        what = f"{where}: reward function {self.name}: log_metric"
        metrics = [
            RewardPart(f"{self.name}.{name}", checked(number, what), 0.0)
            for name, number in logged.items()
        ]
        return [RewardPart(self.name, value, self.weight), *metrics]

    async def of_all(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Sequence[Message]],
        row: Mapping[str, Any],
        seconds: float,
        where: str,
        environments: Sequence[Any] | None = None,
        thread: PinnedThread | None = None,
        logged: dict[str, Any] | None = None,
    ) -> list[float | None]:
        """Its values for several attempts at one row, in order; `logged` gets the metrics. Raises
        as `of`."""
        n = len(prompts)
        metrics: dict[str, Any] = {} if logged is None else logged
        offered = {"log_metric": metrics.__setitem__, "log_extra": lambda column, values: None}
        given: dict[str, Any] = {key: [value] * n for key, value in row.items() if key != "prompt"}
        given["prompts"] = [list(prompt) for prompt in prompts]
        given["completions"] = [list(completion) for completion in completions]
        if environments is not None:
            given["environments"] = list(environments)
        given |= {name: call for name, call in offered.items() if _takes(self.call, name)}
        if misfit := self.misfit(row, environments is not None):
            raise BadInput(f"{where}: {misfit}")
        what = f"{where}: reward function {self.name}"
        values = await asked(self.call, given, seconds, what, thread)
        values = values.tolist() if hasattr(values, "tolist") else values  # an array, a tensor
        if not isinstance(values, Sequence) or len(values) != n:
            of = "one attempt, expected a list of one"
            of = of if n == 1 else f"{n} attempts, expected a list of {n}"
            raise BadInput(f"{what}: gave {values!r:.80} for {of}")
        return [checked(value, what) for value in values]


def _takes(call: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(call).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def checked(value: Any, what: str) -> float | None:
    """Return a value that is a valid reward, else raise `BadInput` that begins with `what`."""
    if value is None:
        return None
    try:
        number = float(value) if hasattr(value, "__float__") else None
    except OverflowError:
        number = math.inf  # a whole number above every float
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several numbers
        number = None
    if number is None:
        raise BadInput(f"{what}: gave {value!r:.80} ({type(value).__name__}), expected a number")
    if not math.isfinite(number):
        raise BadInput(f"{what}: gave {number}, which is not a reward")
    return number


def reward_functions(
    weights: Mapping[str, float], root: Path, where: str, key: str = "rewards", own: str = ""
) -> tuple[RewardFunction, ...]:
    """The functions of `key` in `[envs.NAME]`. own: the part that the environment gives itself;
    empty if it gives none. Raises `BadInput` that begins with `where`."""
    found = []
    for use, weight in weights.items():
        if use == OWN:
            continue
        call = load(use, root, f"{where}.{key}")
        if not callable(call):
            raise BadInput(f"{where}.{key}: {use!r} is not a function")
        found.append(RewardFunction(use.rpartition(":")[2], call, weight))
    names = [own, *(f.name for f in found)]
    if twice := [n for n in names if names.count(n) > 1]:
        raise BadInput(
            f"{where}.{key}: two parts of the reward are called {twice[0]!r}; rename a function"
        )
    return tuple(found)


# --- a group --------------------------------------------------------------------------------------

OfGroup = Callable[[Task, Sequence[Trajectory]], Awaitable[Sequence[Grade]]]


def group_rewards(name: str, settings: EnvSettings, root: Path) -> OfGroup | None:
    """The grader of groups of `[envs.NAME]`; None if it has none. Its functions are loaded for the
    first group; a fault in them raises `BadInput` that names the key."""
    if not settings.group_rewards:
        return None
    where = f"envs.{name}"

    @functools.cache
    def loaded() -> tuple[RewardFunction, ...]:
        return reward_functions(settings.group_rewards, root, where, "group_rewards")

    async def of_group(task: Task, attempts: Sequence[Trajectory]) -> list[Grade]:
        functions = loaded()
        _check(functions, attempts, where)
        prompts = [messages_of(row_of(task)["prompt"], f"task {task.task_id}")] * len(attempts)
        completions = [completion_of(attempt) for attempt in attempts]
        found = [
            await f.of_all(prompts, completions, row_of(task), settings.call_seconds, where)
            for f in functions
        ]
        nothing = (None,) * len(functions)
        return [
            _with(attempt.grade, _parts(functions, nothing if was_late(attempt) else values))
            for attempt, values in zip(attempts, zip(*found, strict=True), strict=True)
        ]

    return of_group


def completion_of(attempt: Trajectory) -> list[Message]:
    """An attempt as messages: each reply and each observation, one message a turn. Calls remain
    text as they were written; the columns of the row are not repeated."""
    said: list[Message] = []
    for turn in attempt.turns:
        said.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None:
            said.append({"role": "tool", "content": turn.observation})
    return [*judged(said)]


def _with(grade: Grade, parts: Sequence[RewardPart]) -> Grade:
    return replace(grade, rewards=(*grade.rewards, *parts))


def _parts(functions: Sequence[RewardFunction], values: Sequence[float | None]) -> list[RewardPart]:
    return [RewardPart(f.name, v, f.weight) for f, v in zip(functions, values, strict=True)]


def _check(functions: Sequence[RewardFunction], attempts: Sequence[Trajectory], where: str) -> None:
    """Raise `BadInput` for a function that needs an environment, and for one whose name is already
    that of a part."""
    own = {part.name for attempt in attempts for part in attempt.grade.rewards}
    for f in functions:
        given = inspect.signature(f.call).parameters.get("environments")
        if given is not None and given.default is inspect.Parameter.empty:
            raise BadInput(
                f"{where}.group_rewards: {f.name} asks for `environments`, and those of a group are"
                " closed when it is called; have the class's tools return what it needs, or put"
                f" the function into {where}.rewards, which is called for one attempt"
            )
        if f.name in own:
            raise BadInput(
                f"{where}.group_rewards: the reward already has a part {f.name!r}; rename the"
                " function"
            )
