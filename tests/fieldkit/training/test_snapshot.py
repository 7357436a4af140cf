"""A reference that is swapped in for a while leaves no trace, and fits exactly or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fieldkit.errors import BadInput
from fieldkit.training.snapshot import LoraReferenceSnapshot, live_lora
from fieldkit.training.tensors import require_alike

NAMES = ["layer.lora_A.weight", "layer.lora_B.weight"]


def small_model(value: float) -> nn.Module:
    """The parameter names of a peft model with one LoRA layer and a frozen base weight."""

    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lora_A = nn.ModuleDict({"default": nn.Linear(3, 2, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 3, bias=False)})
            self.base_layer = nn.Linear(3, 3, bias=False)

    model = nn.Module()
    model.layer = Lora()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def snapshot_of(value: float) -> LoraReferenceSnapshot:
    return LoraReferenceSnapshot.from_model(small_model(value))


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_only_lora_parameters_are_live_and_they_have_file_names() -> None:
    assert list(live_lora(small_model(1.0))) == NAMES


def test_inside_the_block_the_model_has_the_reference_values_and_its_own_base() -> None:
    model = small_model(1.0)
    with snapshot_of(2.0).swapped_in(model):
        assert all((p == 2.0).all() for p in live_lora(model).values())
        assert (model.layer.base_layer.weight == 1.0).all()  # type: ignore[union-attr]


def test_after_the_block_every_bit_is_back() -> None:
    model = small_model(1.0)
    with torch.no_grad():
        for parameter in live_lora(model).values():
            parameter.copy_(torch.randn_like(parameter) * 1e-30)
    before, objects = values(model), live_lora(model)
    with snapshot_of(2.0).swapped_in(model):
        pass
    assert all(torch.equal(before[name], now) for name, now in values(model).items())
    assert all(objects[name] is now for name, now in live_lora(model).items())


def test_an_error_inside_the_block_restores_too() -> None:
    model = small_model(1.0)
    with pytest.raises(ZeroDivisionError), snapshot_of(2.0).swapped_in(model):
        raise ZeroDivisionError
    assert all((p == 1.0).all() for p in model.parameters())


def test_a_later_change_of_the_model_does_not_reach_the_snapshot() -> None:
    model = small_model(1.0)
    snapshot = LoraReferenceSnapshot.from_model(model)
    with torch.no_grad():
        live_lora(model)[NAMES[0]].fill_(9.0)
    assert (snapshot.tensors[NAMES[0]] == 1.0).all()


def test_a_missing_key_is_named_and_nothing_is_swapped() -> None:
    model = small_model(1.0)
    tensors = dict(snapshot_of(2.0).tensors)
    del tensors[NAMES[1]]
    snapshot = LoraReferenceSnapshot(tensors, "reference")
    with pytest.raises(BadInput, match=rf"{NAMES[1]} is missing"), snapshot.swapped_in(model):
        pytest.fail("the block must not run")
    assert all((p == 1.0).all() for p in model.parameters())


def test_an_extra_key_is_named() -> None:
    tensors = dict(snapshot_of(2.0).tensors) | {"other.lora_A.weight": torch.zeros(1)}
    with pytest.raises(BadInput, match=r"other\.lora_A"):
        require_alike(tensors, live_lora(small_model(1.0)), "reference")


def test_another_shape_is_named_with_both_shapes() -> None:
    tensors = dict(snapshot_of(2.0).tensors) | {NAMES[0]: torch.zeros(4, 3)}
    with pytest.raises(BadInput, match=r"lora_A.*\[4, 3\].*\[2, 3\]"):
        require_alike(tensors, live_lora(small_model(1.0)), "reference")


def test_a_nan_in_the_reference_is_named() -> None:
    tensors = dict(snapshot_of(2.0).tensors) | {NAMES[0]: torch.full((2, 3), torch.nan)}
    with pytest.raises(BadInput, match=NAMES[0]):
        LoraReferenceSnapshot(tensors, "reference")


def test_a_folder_is_read_as_it_was_saved(tmp_path: Path) -> None:
    tensors = dict(snapshot_of(2.5).tensors)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    read = LoraReferenceSnapshot.from_folder(tmp_path)
    assert len(read) == 2
    assert all(torch.equal(read.tensors[name], tensors[name]) for name in NAMES)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"adapter_model\.safetensors: no such file"):
        LoraReferenceSnapshot.from_folder(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        LoraReferenceSnapshot.from_folder(tmp_path)
