"""One policy, ready to play: its worlds, its limits, its reward, and the loop of an episode.

The same loop plays a served model, an oracle, random replies and demonstrations. An episode ends
with a stop reason and a grade, whatever the policy did. If the policy or the world fails, the
episode leaves no record, because a broken machine must never look like a bad reply. It is played
again with the same seeds, and repeated failures are raised. Nothing here depends on groups, on
files or on the meaning of a reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fieldkit.errors import Unavailable
from fieldkit.eval.grade import Grade
from fieldkit.records import ActionKind, StopReason, Task, Trajectory, Turn
from reward.group_signal import LATE
from reward.reward import Reward
from rollout.envs.base import Step, World
from rollout.envs.registry import environment_of
from rollout.policies import NoRoom, PolicyOf
from rollout.seeds import EPISODE_TURN
from rollout.settings import EpisodeSettings

TRIES = 3
"""How often an episode is tried before the phase fails. A single failure of a world or a connection
may be chance; three in a row are not."""

TurnSeeds = Callable[[int], int]
"""The sampling seed of a turn, counted from 0; of `EPISODE_TURN`, the seed of the episode."""


_EXCUSED = 2
"""How many episodes may end by a late call before any other has ended."""
_EPISODES_A_LATE = 8
"""How many others allow one more, so that a ninth of a phase is lost at most."""


class LateCalls:
    """Tells a call that a policy made too slow from an environment that answers nobody.

    The slow call ends its episode and nothing else: played again it would be as slow, because the
    reply has the same seed. Few episodes are excused so; more are a failure of the environment.
    """

    def __init__(self) -> None:
        self._left = float(_EXCUSED)
        self._excused = 0

    def earn(self) -> None:
        """An episode ended in another way."""
        self._left = min(self._left + 1 / _EPISODES_A_LATE, _EPISODES_A_LATE)

    def take_back(self) -> None:
        """The episode that was excused last is played again."""
        self._left += 1
        self._excused -= 1

    def excuse(self, late: str) -> None:
        """Let the episode end. Raises `Unavailable` that begins with `late` if too many have."""
        if self._left < 1:
            raise Unavailable(f"{late}. {self._excused} episodes of this phase ended so already")
        self._left -= 1
        self._excused += 1


@dataclass(frozen=True)
class Player:
    """One adapter or yardstick with everything that it needs to play."""

    policy: PolicyOf
    worlds: Callable[[Task], World]
    """Makes a fresh world for one episode of a task."""
    settings: EpisodeSettings
    adapter_sha: str
    policy_version: str
    """The name by which the engine serves the adapter."""
    reward: Reward
    clock: Callable[[], float] = time.monotonic
    """A clock in seconds; replaced where records have to be equal to the byte."""
    late: LateCalls = field(default_factory=LateCalls, compare=False)
    """Shared by all episodes of the phase."""

    async def play(
        self,
        task: Task,
        k: int,
        seeds: TurnSeeds,
        on_turn: Callable[[Turn], None] = lambda turn: None,
    ) -> Trajectory:
        """Play one episode and grade what is left; `Unavailable` after `TRIES`, and at once from an
        engine that has not answered.

        The reply of the last allowed turn still reaches the world, so that the grader sees its
        effect, and its observation is recorded although no prompt contains it. Raises `BadInput` if
        the opening leaves no room for a reply, and `ValueError` for a reward that is not finite.
        """
        failure: Unavailable | None = None
        for _ in range(TRIES):
            world = self.worlds(task)
            try:
                try:
                    return await self._play(task, k, world, seeds, on_turn)
                finally:
                    await world.close()
            except Unavailable as e:
                from rollout.engine.client import NoAnswer  # takes a while; not all have an engine

                if isinstance(e, NoAnswer):
                    raise  # the client has been as patient as it may be
                failure = e
        raise Unavailable(f"task {task.task_id}, k = {k}: failed {TRIES} times; last: {failure}")

    async def _play(
        self, task: Task, k: int, world: World, seeds: TurnSeeds, on_turn: Callable[[Turn], None]
    ) -> Trajectory:
        opened = self.clock()
        policy = self.policy(task, self.settings)
        turns: list[Turn] = []
        steps: list[Step] = []
        sampling_seconds = world_seconds = 0.0
        stop: StopReason | None = None
        opening = await world.reset(task, seeds(EPISODE_TURN))
        try:
            policy.begin(task, opening)
        except NoRoom as e:
            stop = _without_room(task, e)
        while stop is None:
            began = self.clock()
            seed, prompt_ids = seeds(len(turns)), policy.prompt_ids
            try:
                said = await policy.reply(seed)
            except NoRoom as e:  # an endpoint alone knows how long the opening is
                said = _without_room(task, e)
            if said is None or isinstance(said, StopReason):
                stop = said or StopReason.TASK_COMPLETE
                break
            answered = self.clock()
            sampling_seconds += answered - began
            step = await world.step(said.reply)
            world_seconds += self.clock() - answered
            if step.late:
                self.late.excuse(step.late)
            turn = Turn(
                prompt_ids=prompt_ids,
                completion_ids=said.completion_ids,
                logprobs=said.logprobs,
                text=said.reply.text,
                action=step.action,
                observation=step.said,
                exit_code=step.exit_code,
                reward=step.reward,
                finish_reason=said.reply.finish_reason,
                policy_version=self.policy_version,
                seed=seed,
                seconds=self.clock() - began,
            )
            turns.append(turn)
            steps.append(step)
            stop = step.stop or policy.hear(step.observation, len(turns), world_seconds)
            on_turn(turn)
        grade = await world.grade()
        if not (steps and steps[-1].late):
            self.late.earn()
        return Trajectory(
            task_id=task.task_id,
            k=k,
            seed=seeds(EPISODE_TURN),
            adapter_sha=self.adapter_sha,
            sampling=self.settings.sampling,
            turns=tuple(turns),
            stop_reason=stop,
            grade=grade,
            reward=self._paid(task.task_id, k, grade, turns, stop),
            metrics={
                **_metrics(turns, steps),
                "sampling_seconds": sampling_seconds,
                "command_seconds": world_seconds,
                "seconds": self.clock() - opened,
            },
        )

    def graded_again(self, trajectory: Trajectory, grade: Grade) -> Trajectory:
        """The episode with another grade and the reward for it. Raises `ValueError` for a reward
        that is not finite."""
        t = trajectory
        reward = self._paid(t.task_id, t.k, grade, t.turns, t.stop_reason)
        return replace(t, grade=grade, reward=reward)

    def _paid(
        self, task_id: str, k: int, grade: Grade, turns: Sequence[Turn], stop: StopReason
    ) -> float:
        # An oracle may take more turns than a policy may, and is charged for the most allowed.
        turns = turns[-self.settings.max_turns :]
        try:
            return self.reward.of_episode(grade, turns, stop)
        except ValueError as e:
            raise ValueError(f"task {task_id}, k = {k}: {e}") from e

    def take_over(self, trajectory: Trajectory, task: Task, seeds: TurnSeeds) -> Trajectory | None:
        """A stored trajectory as this player's own; None if this player would have played another
        one.

        It counts if adapter, sampling, every seed, the opening prompt and the turn limit are the
        same. Where only a world knows its opening, the prompt is not compared: the run is bound to
        its tasks and to the environment's code. The reward is computed again from the stored grade.
        """
        if not self._would_have_played(trajectory, task, seeds):
            return None
        return self.graded_again(trajectory, trajectory.grade)

    def _would_have_played(self, t: Trajectory, task: Task, seeds: TurnSeeds) -> bool:
        if not t.turns:
            return False
        at_limit = len(t.turns) == self.settings.max_turns
        return (
            t.adapter_sha == self.adapter_sha
            and t.sampling == self.settings.sampling
            and t.seed == seeds(EPISODE_TURN)
            and all(turn.seed == seeds(i) for i, turn in enumerate(t.turns))
            and len(t.turns) <= self.settings.max_turns
            and (at_limit or t.stop_reason is not StopReason.MAX_TURNS)
            and self._begins_so(t, task)
        )

    def _begins_so(self, t: Trajectory, task: Task) -> bool:
        opening = environment_of(task).opening
        if opening is None:
            return True
        policy = self.policy(task, self.settings)
        policy.begin(task, opening(task))
        return t.turns[0].prompt_ids == policy.prompt_ids


def _without_room(task: Task, why: NoRoom) -> StopReason:
    """The end of an attempt whose opening leaves no room, where that is known only now: it is no
    reason to end a night. Raises `why` for an opening that the start of a run finds."""
    if environment_of(task).opening is not None:
        raise why
    return StopReason.CONTEXT_FULL


def _metrics(turns: Sequence[Turn], steps: Sequence[Step]) -> dict[str, float]:
    """Sums over an episode's turns.

    tokens: sampled. prompt_tokens: read by the engine, over all turns (most of them from its prefix
    cache). context_tokens: the longest prompt and its reply. no_action_turns: replies without an
    action that did not stop. cut_turns: replies that reached the length limit. late: there, and 1,
    where a call of the last reply had no answer in time.
    """
    contexts = (len(t.prompt_ids) + len(t.completion_ids) for t in turns)
    sums = {
        "tokens": sum(len(t.completion_ids) for t in turns),
        "prompt_tokens": sum(len(t.prompt_ids) for t in turns),
        "context_tokens": max(contexts, default=0),
        "commands": sum(s.calls for s in steps),
        "commands_failed": sum(s.failed_calls for s in steps),
        "no_action_turns": sum(t.action.kind is ActionKind.NONE for t in turns),
        "cut_turns": sum(t.finish_reason == "length" for t in turns),
    }
    if steps and steps[-1].late:
        sums[LATE] = 1
    return {name: float(value) for name, value in sums.items()}
