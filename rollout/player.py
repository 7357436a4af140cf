"""A policy with everything it needs to play: the engine, the tokenizer, a world, and its limits.

One player serves a whole phase, so that rollout, evaluation and preflight play in the same way and
differ only in tasks and seeds. A failure of the machinery is met here by playing the same attempt
again with the same seeds; when that does not help it is the caller's, never a reward.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fieldkit.errors import Unavailable
from fieldkit.records import StopReason, Task, Trajectory, Turn
from rollout.engine.client import Sampler
from rollout.envs.shell import Environment, system_prompt
from rollout.episode import RewardFunction, TurnSeeds, checked_reward, play_episode
from rollout.seeds import EPISODE_TURN
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer

TRIES = 3
"""How often an attempt is played before the phase gives up on it: one sandbox or one connection
may break by itself; what breaks three times in a row is broken."""


@dataclass(frozen=True)
class Player:
    """One adapter, ready to play.

    environments: makes a fresh environment of the named kind.
    policy_version: the name under which the engine serves the adapter.
    clock: seconds; replaced where records have to be equal to the byte.
    """

    sampler: Sampler
    renderer: ChatRenderer
    environments: Callable[[str], Environment]
    settings: EpisodeSettings
    adapter_sha: str
    policy_version: str
    reward: RewardFunction
    clock: Callable[[], float] = time.monotonic

    async def play(
        self,
        task: Task,
        k: int,
        seeds: TurnSeeds,
        on_turn: Callable[[Turn], None] | None = None,
    ) -> Trajectory:
        """One attempt, played again when the machinery fails; `Unavailable` after `TRIES`."""
        failure: Unavailable | None = None
        for _ in range(TRIES):
            try:
                return await self._play_once(task, k, seeds, on_turn)
            except Unavailable as e:
                failure = e
        raise Unavailable(f"task {task.task_id}, k = {k}: failed {TRIES} times; last: {failure}")

    async def _play_once(
        self, task: Task, k: int, seeds: TurnSeeds, on_turn: Callable[[Turn], None] | None
    ) -> Trajectory:
        environment = self.environments(task.env)
        try:
            return await play_episode(
                task,
                k,
                sampler=self.sampler,
                environment=environment,
                renderer=self.renderer,
                seeds=seeds,
                settings=self.settings,
                adapter_sha=self.adapter_sha,
                policy_version=self.policy_version,
                reward=self.reward,
                on_turn=on_turn,
                clock=self.clock,
            )
        finally:
            await environment.close()

    def take_over(self, trajectory: Trajectory, task: Task, seeds: TurnSeeds) -> Trajectory | None:
        """A stored trajectory as this player's own, or None when it would have been another.

        It counts when adapter, sampling, every seed, the opening prompt and the turn limit are the
        same. The reward is worked out again from the stored grade.
        """
        if not self._would_have_played(trajectory, task, seeds):
            return None
        where = f"task {trajectory.task_id}, k = {trajectory.k}"
        reward = checked_reward(self.reward, trajectory.grade, len(trajectory.turns), where)
        return replace(trajectory, reward=reward)

    def _would_have_played(self, t: Trajectory, task: Task, seeds: TurnSeeds) -> bool:
        opening = self.renderer.start(system_prompt(task.env), task.prompt).prompt_ids
        at_limit = len(t.turns) == self.settings.max_turns
        return (
            t.adapter_sha == self.adapter_sha
            and t.sampling == self.settings.sampling
            and t.seed == seeds(EPISODE_TURN)
            and all(turn.seed == seeds(i) for i, turn in enumerate(t.turns))
            and t.turns[:1] != ()
            and t.turns[0].prompt_ids == opening
            and len(t.turns) <= self.settings.max_turns
            and (at_limit or t.stop_reason is not StopReason.MAX_TURNS)
        )
