"""The mean of a run's adapters is an adapter of the same shape, and others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fieldkit.errors import BadInput
from fieldkit.training import load_tensors, mean_adapter, read_adapter
from tests.fieldkit.training.test_adapter import lora_tensors, write_adapter

WEIGHTS = "adapter_model.safetensors"


def filled(folder: Path, value: float, **config: Any) -> Path:
    """An adapter whose every tensor is `value`."""
    tensors = {name: np.full_like(t, value) for name, t in lora_tensors().items()}
    return write_adapter(folder, tensors, **config)


def test_every_tensor_is_the_mean_of_the_equally_named_ones(tmp_path: Path) -> None:
    adapters = [filled(tmp_path / str(v), v) for v in (1.0, 2.0, 6.0)]
    mean_adapter(adapters, tmp_path / "mean")
    found = load_tensors(tmp_path / "mean" / WEIGHTS)
    assert found.keys() == lora_tensors().keys()
    assert all(torch.equal(t, torch.full_like(t, 3.0)) for t in found.values())
    assert read_adapter(tmp_path / "mean").rank == read_adapter(adapters[0]).rank


def test_the_mean_of_one_adapter_is_that_adapter(tmp_path: Path) -> None:
    adapter = filled(tmp_path / "one", 0.1)
    mean_adapter([adapter], tmp_path / "mean")
    before, after = (load_tensors(p / WEIGHTS) for p in (adapter, tmp_path / "mean"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_mean_of_many_is_not_spoiled_by_rounding(tmp_path: Path) -> None:
    """In float32, a thousand additions of 0.1 end 1e-4 away."""
    adapter = filled(tmp_path / "one", 0.1)
    mean_adapter([adapter] * 1000, tmp_path / "mean")
    found = load_tensors(tmp_path / "mean" / WEIGHTS)
    assert all(torch.equal(t, torch.full_like(t, 0.1)) for t in found.values())


def test_a_value_that_is_not_finite_is_named_and_no_mean_is_written(tmp_path: Path) -> None:
    adapters = [filled(tmp_path / str(v), v) for v in (1.0, float("nan"))]
    with pytest.raises(BadInput, match=r"nan/adapter_model\.safetensors: .* holds NaN or infinite"):
        mean_adapter(adapters, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"r": 4}, "rank is 4, but 2 in"),
        ({"lora_alpha": 8}, "alpha is 8.0, but 4.0 in"),
        ({"target_modules": ["q_proj"]}, "target_modules is"),
        ({"use_rslora": True}, "use_rslora is True"),
    ],
)
def test_adapters_whose_tensors_mean_different_things_have_no_mean(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    adapters = [filled(tmp_path / "one", 1.0), filled(tmp_path / "other", 2.0, **config)]
    with pytest.raises(BadInput, match=named):
        mean_adapter(adapters, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_a_tensor_that_only_one_has_is_named(tmp_path: Path) -> None:
    tensors = lora_tensors()
    gone = next(iter(tensors))
    del tensors[gone]
    adapters = [filled(tmp_path / "one", 1.0), write_adapter(tmp_path / "other", tensors)]
    with pytest.raises(BadInput, match=f"{gone} is missing"):
        mean_adapter(adapters, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_another_dtype_is_named(tmp_path: Path) -> None:
    halves = write_adapter(tmp_path / "other", lora_tensors(np.float16), "F16")
    with pytest.raises(BadInput, match=r"is torch\.float16, but torch\.float32 in"):
        mean_adapter([filled(tmp_path / "one", 1.0), halves], tmp_path / "mean")


def test_an_adapter_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    adapter = filled(tmp_path / "one", 1.0)
    with pytest.raises(BadInput, match="exists; choose another folder"):
        mean_adapter([adapter], adapter)


def test_nothing_has_no_mean(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no adapter to take the mean of"):
        mean_adapter([], tmp_path / "mean")
