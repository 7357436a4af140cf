"""A model that stays loaded: steps on it are those of a fresh one, and another one is loaded."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fieldkit.errors import BadInput, Shortage
from fieldkit.gate.memory import Available
from fieldkit.training.adapter import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterInfo,
    adapter_sha,
    read_adapter,
)
from tests.trainer.conftest import make_adapter
from tests.trainer.test_step import SETTINGS, follow
from trainer.footprint import budget
from trainer.inputs import StepInputs
from trainer.progress import Lines
from trainer.scoring.kept_model import KeptModel
from trainer.settings import TrainerSettings
from trainer.step import train


@pytest.fixture
def inputs(
    bundle: Path, adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> StepInputs:
    return StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / "step-001")


def step(inputs: StepInputs, settings: TrainerSettings, model: KeptModel | None) -> dict[str, Any]:
    return train(inputs, settings, Lines(StringIO()), model)


def written(folder: Path) -> dict[str, bytes]:
    """Every file of a step but train.json, which has the seconds."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "train.json"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.mark.parametrize(
    ("dtype", "served"),
    [("fp32", "float32"), ("bf16", "bfloat16"), ("fp32", "bfloat16")],
)
def test_a_step_on_a_kept_model_leaves_the_bytes_of_one_on_a_fresh_model(
    inputs: StepInputs, tmp_path: Path, dtype: Any, served: Any
) -> None:
    settings = dataclasses.replace(SETTINGS, dtype=dtype, serving_dtype=served, lr=1e-3)
    kept = KeptModel()
    step(inputs, settings, kept)
    second = follow(inputs, tmp_path)
    alone = dataclasses.replace(second, out_dir=tmp_path / "alone")
    assert kept.is_loaded
    figures, fresh = step(second, settings, kept), step(alone, settings, None)
    assert figures["train"].keys() == fresh["train"].keys()
    assert written(second.out_dir) == written(alone.out_dir)
    assert figures["train"]["kl"] == fresh["train"]["kl"]


def test_a_step_that_failed_leaves_nothing_in_the_next_one(
    inputs: StepInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptModel()

    def fail(*args: object, **kwargs: object) -> None:
        raise Shortage("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("trainer.update.save_state", fail)  # after the optimizer's step
        with pytest.raises(Shortage):
            step(inputs, SETTINGS, kept)
    again = dataclasses.replace(inputs, out_dir=tmp_path / "fresh")
    step(inputs, SETTINGS, kept)
    step(again, SETTINGS, None)
    assert written(inputs.out_dir) == written(again.out_dir)


def test_another_model_dtype_or_lora_is_loaded_anew(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    info = read_adapter(adapter)
    kept = KeptModel()

    def policy_of(
        model: Path = tiny_model, dtype: torch.dtype = torch.float32, lora: AdapterInfo = info
    ) -> object:
        kept.keep_only(model, lora, dtype, checkpointing=False)
        return kept.with_adapter(lora)

    first = policy_of()
    assert policy_of() is first
    assert policy_of(dtype=torch.bfloat16) is not first
    model = shutil.copytree(tiny_model, tmp_path / "model")
    copied = policy_of(model)
    assert policy_of(model) is copied
    os.utime(model / "model.safetensors", (1, 1))
    assert policy_of(model) is not copied

    stronger = shutil.copytree(adapter, tmp_path / "stronger")
    config = json.loads((stronger / CONFIG_FILE).read_text())
    (stronger / CONFIG_FILE).write_text(json.dumps({**config, "lora_alpha": 2 * info.alpha}))
    before = policy_of()
    assert policy_of(lora=read_adapter(stronger)) is not before


def test_a_dropped_models_memory_is_back_before_that_for_the_next_one_is_looked_at(
    tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch keeps what was freed on a GPU, where it looks as if the old model were still there."""
    info, kept = read_adapter(adapter), KeptModel()
    kept.keep_only(tiny_model, info, torch.float32, checkpointing=False)
    kept.with_adapter(info)
    loaded_when_emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: loaded_when_emptied.append(kept.is_loaded)
    )
    kept.keep_only(tiny_model, info, torch.float32, checkpointing=False)
    assert loaded_when_emptied == []
    kept.keep_only(tiny_model, info, torch.float32, checkpointing=True)
    assert loaded_when_emptied == [False]


def test_an_adapter_with_a_tensor_too_few_is_refused_by_name_and_the_model_dropped(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    info, kept = read_adapter(adapter), KeptModel()
    kept.keep_only(tiny_model, info, torch.float32, checkpointing=False)
    kept.with_adapter(info)
    broken = shutil.copytree(adapter, tmp_path / "broken")
    tensors = load_file(broken / WEIGHTS_FILE)
    gone = sorted(tensors)[0]
    save_file({name: t for name, t in tensors.items() if name != gone}, broken / WEIGHTS_FILE)
    with pytest.raises(BadInput, match=f"{gone} is missing"):
        kept.with_adapter(dataclasses.replace(info, path=broken))
    assert not kept.is_loaded


def test_memory_that_the_kept_model_holds_is_not_asked_for_again(
    inputs: StepInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptModel()
    step(inputs, SETTINGS, kept)
    short = Available(host=int(0.4 * 2**30), gpu=None)  # less than the program alone needs
    monkeypatch.setattr(budget, "available", lambda: short)
    again = dataclasses.replace(inputs, out_dir=tmp_path / "again")
    with pytest.raises(Shortage):
        step(again, SETTINGS, None)
    step(again, SETTINGS, kept)


def test_weights_are_read_from_the_file_and_not_from_the_step_before(
    inputs: StepInputs, tiny_model: Path, tmp_path: Path
) -> None:
    kept = KeptModel()
    step(inputs, SETTINGS, kept)
    other = make_adapter(tiny_model, tmp_path / "other", seed=9)
    kept.keep_only(tiny_model, read_adapter(other), torch.float32, checkpointing=False)
    policy = kept.with_adapter(read_adapter(other))
    found = load_file(other / WEIGHTS_FILE)
    assert all(torch.equal(p, found[name]) for name, p in policy.lora().items())
    assert all(p.grad is None and p.requires_grad for p in policy.lora().values())
    assert adapter_sha(other) != adapter_sha(inputs.adapter)
