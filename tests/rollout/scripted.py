"""A sampler that answers from a script, with the real tokenizer: the engine's stand-in.

A script sees what an engine sees (the ids of the prompt and the seed) and nothing else, so episodes
that depend on it replay exactly. Beside it, the tasks and rewards that episode tests share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from fieldkit.errors import Unavailable
from fieldkit.eval.grade import Grade
from fieldkit.records import Sampling, StopReason, Task, Turn
from reward.reward import Reward
from rollout.bundle import roll_out
from rollout.engine.client import Completion, Sampler
from rollout.envs.base import Site, World
from rollout.envs.registry import make_world
from rollout.flight import OnProgress, RolloutProgress, ignore_progress
from rollout.player import Player
from rollout.policies import sampled
from rollout.sandbox.base import SandboxSettings, probe
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.prepare.model import build_model

Script = Callable[[str, int, int], str]
"""(text of the conversation so far, turn from 0, seed) -> the reply's text."""


@cache
def renderer() -> ChatRenderer:
    """The default model's tokenizer and template."""
    return ChatRenderer(build_model())


class ScriptedSampler:
    """Replies as a script says, and remembers what it was asked.

    `max_tokens` cuts a reply as an engine does: finish_reason "length", no end of turn.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.prompts: list[tuple[int, ...]] = []
        self.seeds: list[int] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, seed: int, order: int = 0
    ) -> Completion:
        self.prompts.append(tuple(prompt_ids))
        self.seeds.append(seed)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)  # hands over, so that episodes interleave as they do on an engine
        self.in_flight -= 1
        return self.answer(prompt_ids, sampling, seed)

    def answer(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        # The opening closes two messages (system, user), each turn two more (reply, observation).
        turn = (list(prompt_ids).count(renderer().eot_id) - 2) // 2
        text = self.script(renderer().decode(prompt_ids), turn, seed)
        ids = renderer().encode_reply(text)
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        return Completion(ids, tuple(-0.25 - i / 1000 for i in range(len(ids))), _finish(cut))


def _finish(cut: bool) -> str:
    return "length" if cut else "stop"


class FailingSampler(ScriptedSampler):
    """Fails the first `times` requests whose conversation holds `marker`."""

    def __init__(self, script: Script, marker: str, times: int) -> None:
        super().__init__(script)
        self.marker, self.left = marker, times

    def answer(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        if self.left and self.marker in renderer().decode(prompt_ids):
            self.left -= 1
            raise Unavailable("the engine closed the connection")
        return super().answer(prompt_ids, sampling, seed)


def replies(*texts: str) -> Script:
    """The same replies in every episode; the last one again and again."""
    return lambda conversation, turn, seed: texts[min(turn, len(texts) - 1)]


def bash(command: str) -> str:
    """A reply that holds one command."""
    return f"```bash\n{command}\n```"


def write_task(name: str, **info: Any) -> Task:
    """A task solved by writing `done` into <name>.txt; notes.txt is there and must stay."""
    return Task(
        task_id=name,
        env="clawgym",
        prompt=f"Write the word done into {name}.txt.",
        info={
            "persona": "technical-writer",
            "intent": "write a file",
            "workspace_seed": {
                "files": [{"path": "notes.txt", "kind": "text", "content": f"about {name}\n"}]
            },
            "skills_required": ["shell"],
            "verifiable_assertions": [
                {
                    "kind": "file_contents_contain",
                    "path": f"{name}.txt",
                    "must_contain": ["done"],
                },
                {"kind": "file_unchanged", "path": "notes.txt"},
            ],
            "difficulty": "easy",
            "estimated_steps": 1,
            "oracle": [f"echo done > {name}.txt"],
            **info,
        },
    )


@dataclass(frozen=True)
class Paid(Reward):
    """A reward that a test writes out; groups become advantages as by default."""

    pay: Callable[[Grade, int], float] = lambda grade, n_turns: 0.0

    def of_episode(self, grade: Grade, turns: Sequence[Turn], stop: StopReason) -> float:
        return self.pay(grade, len(turns))


SHAPED = Paid(pay=lambda grade, n_turns: grade.rate - 0.2 * n_turns / 12)
"""The default reward with its numbers written out."""


@cache
def sandbox_settings() -> SandboxSettings:
    """The real sandbox, tried out once. Raises `Unavailable` where it does not work here: episodes
    that were played without one would say nothing about it."""
    probe(SandboxSettings())
    return SandboxSettings()


def worlds(tmp_path: Path) -> Callable[[Task], World]:
    """Makes worlds; what they keep on disk is below the test's own folder."""
    return partial(make_world, site=Site(sandbox_settings(), tmp_path))


def player(tmp_path: Path, script: Script | Sampler, **changes: Any) -> Player:
    """A player of adapter "sha-a" with the default limits, over a script or a sampler.

    Its clock stands still, so that two plays can be compared to the byte.
    """
    whole = Player(
        policy=sampled(ScriptedSampler(script) if callable(script) else script, renderer()),
        worlds=worlds(tmp_path),
        settings=EpisodeSettings(max_turns=4, max_new_tokens=64),
        adapter_sha="sha-a",
        policy_version="test-v1",
        reward=SHAPED,
        clock=lambda: 0.0,
    )
    return replace(whole, **changes)


async def rolled_out(
    player: Player,
    tasks: Sequence[Task],
    group_size: int,
    at: Path,
    on_progress: OnProgress = ignore_progress,
) -> bytes:
    """The bundle of step 1, played in the folder `at`."""
    at.mkdir(exist_ok=True)
    bundle = at / "trajectory_bundle.jsonl"
    await roll_out(
        1,
        tasks,
        player=player,
        run_seed=0,
        group_size=group_size,
        partial=at / "trajectories.partial.jsonl",
        bundle=bundle,
        on_progress=on_progress,
    )
    return bundle.read_bytes()


def once(reached: Callable[[RolloutProgress], bool], do: Callable[[], object]) -> OnProgress:
    """Does it when the phase is so far."""
    done: list[bool] = []

    def on_progress(progress: RolloutProgress) -> None:
        if reached(progress) and not done:
            done.append(True)
            do()

    return on_progress
