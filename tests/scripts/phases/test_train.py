"""The settings that the train phase gives the trainer for a step, and whether it stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.files.atomic import write_json
from rollout.engine.engine_settings import EngineSettings
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.phases.train import _stays, settings_of_step
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from trainer.settings import TrainerSettings


def context(folder: Path, kl_small: float, kls: list[float | None]) -> Context:
    """A run whose steps from 1 on have these KLs."""
    run = RunFolder(folder)
    for n, kl in enumerate(kls, start=1):
        run.step(n).mkdir(parents=True)
        train = {"training_bits": 16} | ({} if kl is None else {"kl": kl})
        write_json(run.step(n) / "train.json", {"train": train})
    trainer = TrainerSettings(
        serving_dtype="bfloat16", tokens_per_microbatch=64, kl_small=kl_small, kl_every=3
    )
    return Context(run, RunConfig(trainer=trainer), lambda event: None, Wish(), Stopwatch(0.0))


@pytest.mark.parametrize(
    ("kls", "coefficient"),
    [
        ([], 0.02),
        ([0.5], 0.02),
        ([0.5, 0.05], 0.0),
        ([0.5, 0.05, None], 0.0),
        ([0.5, 0.05, None, None], 0.02),
        ([0.5, 0.05, None, None, 0.05], 0.0),
        ([0.05, None, None, 0.2], 0.02),
    ],
)
def test_a_small_kl_is_computed_at_every_third_step_only(
    kls: list[float | None], coefficient: float, tmp_path: Path
) -> None:
    ctx = context(tmp_path, 0.1, kls)
    assert settings_of_step(ctx, len(kls) + 1).kl_coef == coefficient


def test_by_default_it_is_computed_at_every_step(tmp_path: Path) -> None:
    ctx = context(tmp_path, 0.0, [0.0, 0.0])
    assert settings_of_step(ctx, 3).kl_coef == ctx.config.trainer.kl_coef


def test_the_dtype_that_was_measured_stays(tmp_path: Path) -> None:
    assert settings_of_step(context(tmp_path, 0.0, [0.1]), 2).dtype == "bf16"
    assert settings_of_step(context(tmp_path / "other", 0.0, []), 1).dtype == "auto"


@pytest.mark.parametrize(
    ("engine", "stays"),
    [
        ({"replicas": 0, "urls": ["http://gpu-box"]}, True),
        ({"replicas": 0, "urls": ["http://gpu-box"], "keep_trainer": False}, False),
        ({}, False),
    ],
    ids=["all servers are elsewhere", "it is not wanted", "the own server has ended"],
)
def test_the_trainer_stays_where_no_server_needs_its_room(
    engine: dict[str, object], stays: bool, tmp_path: Path
) -> None:
    ctx = context(tmp_path, 0.0, [])
    ctx.config = replace(ctx.config, engine=EngineSettings(**engine))  # type: ignore[arg-type]
    assert _stays(ctx) == stays
