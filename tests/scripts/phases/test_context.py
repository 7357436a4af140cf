"""What a phase's context derives from the settings of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.engine.engine_settings import EngineSettings
from scripts.base.signals import Wish
from scripts.phases.checks import check_model
from scripts.phases.context import Context
from scripts.run.config import ModelSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from tests.trainer.conftest import *  # noqa: F403  # the tiny model and its adapters
from trainer.settings import CPU_TOKENS, GPU_TOKENS, TrainerSettings


@pytest.mark.parametrize(("gpus", "as_if"), [(0, "fp32"), (1, "bf16")])
def test_the_trainer_s_memory_is_that_of_the_dtype_in_which_it_may_load_the_base(
    gpus: int,
    as_if: Any,
    tiny_model: Path,
    adapter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fieldkit.gate.nvidia.gpu_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def need(dtype: Any) -> int:
        config = RunConfig(
            model=ModelSettings(path=str(tiny_model), adapter=str(adapter)),
            trainer=TrainerSettings(dtype=dtype, tokens_per_microbatch=1),
            engine=EngineSettings(dtype="bfloat16"),
        )
        run = RunFolder(tmp_path)
        return Context(run, config, lambda event: None, Wish(), Stopwatch(0.0)).trainer_bytes()

    assert need("bf16") < need("fp32")
    assert need("auto") == need(as_if)


def of_trainer(
    policy: tuple[Path, Path], folder: Path, trainer: TrainerSettings, **cluster: Any
) -> Context:
    """A run with this [trainer] and [cluster]."""
    config = RunConfig(
        model=ModelSettings(path=str(policy[0])),
        trainer=trainer,
        cluster=ClusterSettings(**cluster),
        engine=EngineSettings(dtype="float32"),
    )
    return Context(RunFolder(folder), config, lambda event: None, Wish(), Stopwatch(0.0))


ON_ONE_GPU = {"kind": "ray", "trainer_needs": {"GPU": 1.0}}


@pytest.mark.parametrize(
    ("cluster", "says"), [({}, "this machine has 2 CUDA"), (ON_ONE_GPU, "trainer_needs asks for 1")]
)
def test_more_processes_than_gpus_are_refused_before_the_first_rollout(
    policy: tuple[Path, Path],
    tmp_path: Path,
    cluster: dict[str, Any],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fieldkit.gate.nvidia.gpu_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    trainer = TrainerSettings(processes=4)
    with pytest.raises(BadInput, match=rf"trainer\.processes is 4, and .*{says}"):
        check_model(of_trainer(policy, tmp_path, trainer, **cluster))
    as_many = of_trainer(policy, tmp_path, TrainerSettings(launch="torchrun"), **cluster)
    check_model(as_many)


def test_on_a_cluster_the_default_micro_batch_is_that_of_what_the_trainer_asks_for(
    policy: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldkit.gate.nvidia.gpu_count", int)
    there = of_trainer(policy, tmp_path, TrainerSettings(), **ON_ONE_GPU)
    assert there.trainer().tokens_per_microbatch == GPU_TOKENS
    here = of_trainer(policy, tmp_path, TrainerSettings())
    assert here.trainer().tokens_per_microbatch == CPU_TOKENS


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
