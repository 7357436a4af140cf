"""What a phase's context derives from the settings of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from fieldkit.errors import BadInput
from rollout.engine.engine_settings import EngineSettings
from scripts.base.signals import Wish
from scripts.phases.checks import check_model
from scripts.phases.context import Context, _from_hub
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


@pytest.mark.parametrize("cached", [True, False])
def test_a_model_of_the_hub_is_asked_for_only_where_it_is_not_cached(
    cached: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A newer copy in the middle of a night would be another model."""
    asked: list[bool] = []
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).touch()

    def download(hub_id: str, *, local_files_only: bool = False, **other: Any) -> str:
        asked.append(local_files_only)
        if cached:
            return str(tmp_path)
        raise LocalEntryNotFoundError("none") if local_files_only else ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    if cached:
        assert _from_hub("some/model") == tmp_path
        assert asked == [True]
        return
    with pytest.raises(BadInput, match=r"its download from the hub failed \(ConnectionError"):
        _from_hub("some/model")
    assert asked == [True, False]


@pytest.mark.parametrize("lacks", ["tokenizer_config.json", "model-2.safetensors"])
def test_a_copy_that_another_program_left_without_weights_or_tokenizer_is_completed(
    lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("config.json", "tokenizer_config.json", "model-1.safetensors", "model-2.safetensors")
    for name in names:
        (tmp_path / name).touch()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / lacks).unlink()

    def download(hub_id: str, *, local_files_only: bool = False, **other: Any) -> str:
        if not local_files_only:
            (tmp_path / lacks).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert (_from_hub("some/model") / lacks).is_file()
