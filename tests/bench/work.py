"""What every contestant of the bench does: a night's first step of 8 tasks, 4 attempts at each.

The preset `smol`, its model and its warm start, with the documents' pool and size of a step.
Nothing here is measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.records import Task
from fieldkit.training.adapter import AdapterInfo, check_adapter
from reward.reward import Reward
from rollout.draw.base import Drawing
from rollout.draw.epochs import by_epochs
from rollout.engine.client import EngineClient
from rollout.engine.vllm_server import preloads, serving_dtype
from rollout.envs.base import Site
from rollout.envs.registry import make_world
from rollout.player import Player
from rollout.policies import sampled
from rollout.settings import RolloutSettings
from rollout.tasks import read_tasks
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT, from_checkout
from scripts.base.machine import hardware, version, versions
from scripts.prepare.model import build_model
from scripts.prepare.presets import preset_config
from scripts.run.config import RunConfig
from trainer.settings import ServingDtype, TrainerSettings

PRESET = "smol"

STEP = ("data.pool=data/pool.jsonl", "rollout.group_size=4")
"""The documents' step, which every bench has measured: a default night's has 64 attempts now."""

TABLES = ("engine", "rollout", "sandbox", "trainer")
"""Of run.toml: the settings that a measurement depends on."""

PAGES = ("docs/performance*.json", "docs/PERFORMANCE*.md")
"""What a bench writes: a page that was written does not make the next part another commit's."""


@dataclass(frozen=True)
class Work:
    """One step's work. smaller: settings that make it less than `STEP`, for a test."""

    model: Path
    adapter: AdapterInfo
    tasks: tuple[Task, ...]
    config: RunConfig
    smaller: tuple[str, ...] = ()

    @classmethod
    def of_preset(cls, smaller: Sequence[str] = ()) -> Work:
        config = preset_config(PRESET, (*STEP, *smaller))
        model = build_model()
        settings = config.rollout
        pool = read_tasks(ROOT / config.data.pool)
        return cls(
            model,
            check_adapter(from_checkout(config.model.adapter), model),
            tuple(by_epochs(Drawing(settings.run_seed, 1, pool, settings.tasks_per_step))),
            config,
            tuple(smaller),
        )

    @property
    def episodes(self) -> int:
        return len(self.tasks) * self.config.rollout.group_size

    @property
    def dtype(self) -> ServingDtype:
        """What the engine computes in on this machine."""
        return serving_dtype(self.config.engine, self.model)

    @property
    def trainer(self) -> TrainerSettings:
        """The night's, following the engine."""
        return self.trainer_with()

    def trainer_with(self, **changes: Any) -> TrainerSettings:
        """The night's but for `changes`."""
        return replace(self.config.trainer, **{"serving_dtype": self.dtype, **changes})

    def served_by(self, lifecycle: str) -> Work:
        """The same work where new adapters reach the engine in this way."""
        engine = replace(self.config.engine, lifecycle=lifecycle)
        smaller = (*self.smaller, f'engine.lifecycle="{lifecycle}"')
        return replace(self, config=replace(self.config, engine=engine), smaller=smaller)

    def settings(self, concurrency: int) -> RolloutSettings:
        """The night's, with so many episodes in flight; 0 is all."""
        return replace(self.config.rollout, concurrency=concurrency)

    def player(
        self, client: EngineClient, chat: ChatRenderer, concurrency: int, scratch: Path
    ) -> Player:
        """Plays as the rollout phase does."""
        config = self.config
        site = Site(config.sandbox, scratch, pay_implied=config.reward.pay_implied)
        return Player(
            policy=sampled(client, chat),
            worlds=lambda task: make_world(task, site),
            settings=self.settings(concurrency),
            adapter_sha=self.adapter.sha,
            policy_version=client.model_name,
            reward=Reward(config.reward, config.advantages.scale, config.advantages.credit),
        )


def about(work: Work) -> dict[str, Any]:
    """What the measurements belong to: machine, versions, dtype and amount of work."""
    machine = hardware()
    devices = [*machine["gpus"][:1], f"{machine['cores']} cores of {machine['cpu']}"]
    return {
        "machine": " with ".join(devices),
        "dtype": work.dtype,
        "threads": len(os.sched_getaffinity(0)),
        "preload": preloads(work.config.engine.tcmalloc),
        "versions": versions(PAGES) | {"trl": version("trl")},
        "settings": {name: table for name, table in work.config.plain().items() if name in TABLES},
        "smaller": list(work.smaller),
    }
