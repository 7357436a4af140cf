"""One attempt at one task: sample a reply, find its action, let the environment answer, repeat.

An episode ends with a stop reason and a grade, whatever the policy did: a bad attempt is data. A
sampler, environment or grader that fails is an exception that leaves no trajectory behind, because
a broken sandbox must never look like a bad reply. Nothing here knows of groups, files or retries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.records import Action, ActionKind, StopReason, Task, Trajectory, Turn
from rollout.engine.client import Sampler
from rollout.envs.protocol import NO_ACTION_OBSERVATION
from rollout.envs.shell import Environment, system_prompt
from rollout.seeds import EPISODE_TURN
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer, Transcript

RewardFunction = Callable[[Grade, int], float]
"""A grade and the number of turns as one number."""

TurnSeeds = Callable[[int], int]
"""The sampling seed of a turn, counted from 0; of `EPISODE_TURN`, the seed of the episode."""


@dataclass(frozen=True)
class _Answer:
    """What came back for an action. `observation` is None where nothing was run or said."""

    observation: str | None = None
    exit_code: int | None = None
    reward: float | None = None
    done: bool = False


@dataclass
class _Episode:
    """An episode under way: what its turns need, and what they leave."""

    task: Task
    sampler: Sampler
    environment: Environment
    transcript: Transcript
    decode: Callable[[Sequence[int]], str]
    seeds: TurnSeeds
    settings: EpisodeSettings
    policy_version: str
    clock: Callable[[], float]
    turns: list[Turn] = field(default_factory=list)
    sampling_seconds: float = 0.0
    command_seconds: float = 0.0

    async def take_turn(self) -> StopReason | None:
        """One exchange. Returns why the episode ends with it, or None."""
        began = self.clock()
        seed = self.seeds(len(self.turns))
        prompt_ids = self.transcript.prompt_ids
        completion = await self.sampler.sample(prompt_ids, self.settings.sampling, seed)
        self.sampling_seconds += self.clock() - began
        text = self.decode(completion.ids)
        action = self.settings.parse(text)
        answer = await self._act(action)
        self.turns.append(
            Turn(
                prompt_ids=prompt_ids,
                completion_ids=completion.ids,
                logprobs=completion.logprobs,
                text=text,
                action=action,
                observation=answer.observation,
                exit_code=answer.exit_code,
                reward=answer.reward,
                finish_reason=completion.finish_reason,
                policy_version=self.policy_version,
                seed=seed,
                seconds=self.clock() - began,
            )
        )
        if action.kind is ActionKind.DONE:
            return StopReason.TASK_COMPLETE
        if answer.done:
            return StopReason.ENV_DONE
        if len(self.turns) == self.settings.max_turns:
            return StopReason.MAX_TURNS
        assert answer.observation is not None
        self.transcript.add_completion(completion.ids)
        self.transcript.add_observation(answer.observation)
        return None

    async def _act(self, action: Action) -> _Answer:
        if action.command:
            began = self.clock()
            step = await self.environment.step(action.command)
            self.command_seconds += self.clock() - began
            return _Answer(step.observation, step.exit_code, step.reward, step.done)
        if action.kind is ActionKind.NONE:
            return _Answer(NO_ACTION_OBSERVATION)
        return _Answer()

    def limit_reached(self) -> StopReason | None:
        """Why no further turn may begin, or None."""
        if not self._fits():
            return StopReason.CONTEXT_FULL
        if self.command_seconds >= self.settings.episode_seconds:
            return StopReason.TIME_LIMIT
        return None

    def _fits(self) -> bool:
        needed = len(self.transcript.prompt_ids) + self.settings.max_new_tokens
        return needed <= self.settings.max_model_len

    def check_opening(self) -> None:
        """A task whose first prompt does not fit cannot be played by any policy."""
        if not self._fits():
            raise BadInput(
                f"task {self.task.task_id}: its opening prompt has"
                f" {len(self.transcript.prompt_ids)} tokens; with max_new_tokens ="
                f" {self.settings.max_new_tokens} it does not fit max_model_len ="
                f" {self.settings.max_model_len}; raise max_model_len or shorten the task"
            )


async def play_episode(
    task: Task,
    k: int,
    *,
    sampler: Sampler,
    environment: Environment,
    renderer: ChatRenderer,
    seeds: TurnSeeds,
    settings: EpisodeSettings,
    adapter_sha: str,
    policy_version: str,
    reward: RewardFunction,
    on_turn: Callable[[Turn], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Trajectory:
    """Play attempt number `k` at `task` and grade what is left.

    The command of the last allowed turn still runs, so that the grader sees it, and its
    observation is kept though no prompt holds it; an observation is None only where the reply
    stopped the episode and nothing was run. The time limit is looked at between turns, so an
    episode may overrun it by one command. The caller made the environment and closes it. `clock`
    counts seconds. Raises `BadInput` when the task's opening prompt leaves no room for a reply,
    `Unavailable` when sampler or environment fail, `ValueError` for a reward that is not finite.
    """
    opened = clock()
    await environment.reset(task)
    episode = _Episode(
        task=task,
        sampler=sampler,
        environment=environment,
        transcript=renderer.start(system_prompt(task.env), task.prompt),
        decode=renderer.decode,
        seeds=seeds,
        settings=settings,
        policy_version=policy_version,
        clock=clock,
    )
    episode.check_opening()
    stop: StopReason | None = None
    while stop is None:
        stop = await episode.take_turn()
        if on_turn is not None:
            on_turn(episode.turns[-1])
        stop = stop or episode.limit_reached()
    grade = await environment.grade()
    turns = tuple(episode.turns)
    return Trajectory(
        task_id=task.task_id,
        k=k,
        seed=seeds(EPISODE_TURN),
        adapter_sha=adapter_sha,
        sampling=settings.sampling,
        turns=turns,
        stop_reason=stop,
        grade=grade,
        reward=checked_reward(reward, grade, len(turns), f"task {task.task_id}, k = {k}"),
        metrics={
            **turn_metrics(turns),
            "sampling_seconds": episode.sampling_seconds,
            "command_seconds": episode.command_seconds,
            "seconds": clock() - opened,
        },
    )


def checked_reward(reward: RewardFunction, grade: Grade, n_turns: int, where: str) -> float:
    """The reward; `ValueError` that begins with `where` when it is not a finite number."""
    value = reward(grade, n_turns)
    if not math.isfinite(value):
        raise ValueError(f"{where}: the reward of {n_turns} turns is {value}, not a finite number")
    return value


def turn_metrics(turns: Sequence[Turn]) -> dict[str, float]:
    """What an episode's turns add up to.

    tokens: sampled. prompt_tokens: read by the engine, all turns added (most of them from its
    prefix cache). context_tokens: the longest prompt and its reply. no_action_turns: replies
    without command or stop. cut_turns: replies that met the length limit.
    """
    return {
        "tokens": float(sum(len(t.completion_ids) for t in turns)),
        "prompt_tokens": float(sum(len(t.prompt_ids) for t in turns)),
        "context_tokens": float(
            max((len(t.prompt_ids) + len(t.completion_ids) for t in turns), default=0)
        ),
        "commands": float(sum(bool(t.action.command) for t in turns)),
        "commands_failed": float(sum(t.exit_code not in (None, 0) for t in turns)),
        "no_action_turns": float(sum(t.action.kind is ActionKind.NONE for t in turns)),
        "cut_turns": float(sum(t.finish_reason == "length" for t in turns)),
    }
