"""What a phase's context derives from the settings of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from rollout.engine.engine_settings import EngineSettings
from scripts.base.signals import Wish
from scripts.phases.checks import check_model
from scripts.phases.context import Context
from scripts.run.config import ModelSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from tests.trainer.conftest import *  # noqa: F403  # the tiny model and its adapters
from trainer.settings import TrainerSettings


@pytest.mark.parametrize(("gpus", "as_if"), [(0, "fp32"), (1, "bf16")])
def test_the_trainer_s_memory_is_that_of_the_dtype_in_which_it_may_load_the_base(
    gpus: int,
    as_if: Any,
    tiny_model: Path,
    adapter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.settings.gpu_names", lambda: ["H100"] * gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def need(dtype: Any) -> int:
        config = RunConfig(
            model=ModelSettings(path=str(tiny_model), adapter=str(adapter)),
            trainer=TrainerSettings(dtype=dtype, tokens_per_microbatch=64),
            engine=EngineSettings(dtype="bfloat16"),
        )
        run = RunFolder(tmp_path)
        return Context(run, config, lambda event: None, Wish(), Stopwatch(0.0)).trainer_bytes()

    assert need("bf16") < need("fp32")
    assert need("auto") == need(as_if)


def test_a_base_that_cannot_be_sharded_is_refused_before_the_first_rollout(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    config = RunConfig(
        model=ModelSettings(path=str(policy[0])),
        trainer=TrainerSettings(processes=2, shard_base=True),
        engine=EngineSettings(dtype="float16"),
    )
    ctx = Context(RunFolder(tmp_path), config, lambda event: None, Wish(), Stopwatch(0.0))
    with pytest.raises(BadInput, match=r"trainer\.shard_base"):
        check_model(ctx)
