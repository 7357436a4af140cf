"""fieldkit.training on ours and on the index's fieldkit 0.34.1: what a script sees of either.

`make test-compat` runs this file on both, `make test` on ours. It imports nothing else of this
repository. A test of a difference (docs/fieldkit/differences.md) says what each of the two does.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fieldkit
from fieldkit.training import LoraReferenceSnapshot, WeightDeltaTracker

OURS = hasattr(fieldkit, "FieldkitError")
FILE = "adapter_model.safetensors"


class Lora(torch.nn.Module):
    """One layer as peft builds it: a frozen base and an adapter's two matrices."""

    def __init__(self, *adapters: str) -> None:
        super().__init__()
        names = adapters or ("default",)
        self.base_layer = torch.nn.Linear(3, 2, bias=False).requires_grad_(False)
        self.lora_A = torch.nn.ModuleDict({n: torch.nn.Linear(3, 1, bias=False) for n in names})
        self.lora_B = torch.nn.ModuleDict({n: torch.nn.Linear(1, 2, bias=False) for n in names})

    def forward(self, x: torch.Tensor) -> Any:
        out = self.base_layer(x)
        for name in self.lora_A:
            out = out + self.lora_B[name](self.lora_A[name](x))
        return out


def lora_model(*adapters: str) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.q = Lora(*adapters)
    return model


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def fill(model: Any, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.fill_(value)


def write(folder: Path, tensors: dict[str, torch.Tensor], name: str = FILE) -> Path:
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / name)
    return folder


def file_tensors(value: float = 0.5) -> dict[str, torch.Tensor]:
    return {
        "q.lora_A.weight": torch.full((1, 3), value),
        "q.lora_B.weight": torch.full((2, 1), value),
    }


# --- names and signatures -------------------------------------------------------------------------


def names(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: (p.kind.name, p.default) for p in parameters if p.name != "self"}


def test_the_signatures_are_the_same() -> None:
    empty = inspect.Parameter.empty
    both, only = "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"
    assert names(LoraReferenceSnapshot) == {"model": (both, empty), "snapshot": (only, None)}
    assert names(LoraReferenceSnapshot.from_disk) == {
        "model": (both, empty),
        "adapter_dir": (both, empty),
        "adapter_name": (only, "default"),
        "weights_filename": (only, FILE),
    }
    assert names(WeightDeltaTracker) == {"model": (both, empty)}
    assert names(WeightDeltaTracker.delta) == {}


# --- the tracker ----------------------------------------------------------------------------------


def test_no_step_is_no_delta_and_the_frozen_base_is_not_followed() -> None:
    tracker = WeightDeltaTracker(lora_model())
    assert tracker.delta() == (0.0, 0.0)
    assert len(tracker) == 2


def test_the_delta_is_the_l2_norm_and_the_largest_step() -> None:
    model = lora_model()
    fill(model, 0.0)
    tracker = WeightDeltaTracker(model)
    with torch.no_grad():
        model.q.lora_A.default.weight.copy_(torch.tensor([[3.0, 0.0, 0.0]]))
        model.q.lora_B.default.weight[0, 0] = -4.0
    assert tracker.delta() == (5.0, 4.0)
    assert tracker.delta() == (5.0, 4.0)


def test_a_model_without_trained_parameters_has_no_delta() -> None:
    tracker = WeightDeltaTracker(lora_model().requires_grad_(False))
    assert (len(tracker), tracker.delta()) == (0, (0.0, 0.0))


# --- the snapshot ---------------------------------------------------------------------------------


def test_inside_the_block_the_values_are_the_snapshots_and_after_it_the_models() -> None:
    model = lora_model()
    start = trained(model)
    reference = LoraReferenceSnapshot(model)
    assert len(reference) == 2
    fill(model, 9.0)
    for _ in range(2):
        with reference as entered:
            assert entered is reference
            assert all(torch.equal(v, start[n]) for n, v in trained(model).items())
        assert all((v == 9.0).all() for v in trained(model).values())


def test_an_exception_in_the_block_restores() -> None:
    model = lora_model()
    reference = LoraReferenceSnapshot(model)
    fill(model, 9.0)
    with pytest.raises(ZeroDivisionError), reference:
        raise ZeroDivisionError
    assert all((v == 9.0).all() for v in trained(model).values())


def test_a_graph_from_before_the_block_can_be_backpropagated_after_it() -> None:
    model = lora_model()
    reference = LoraReferenceSnapshot(model)
    fill(model, 0.5)
    loss = model.q(torch.ones(3)).sum()
    with reference, torch.no_grad():
        model.q(torch.ones(3))
    loss.backward()
    assert model.q.lora_A.default.weight.grad.tolist() == [[1.0, 1.0, 1.0]]


def test_entering_twice_is_a_runtime_error_and_loses_nothing() -> None:
    model = lora_model()
    reference = LoraReferenceSnapshot(model)
    fill(model, 9.0)
    with reference, pytest.raises(RuntimeError, match="already active"), reference:
        pytest.fail("the block must not run")
    assert all((v == 9.0).all() for v in trained(model).values())


def test_a_snapshot_of_some_values_leaves_the_others() -> None:
    model = lora_model()
    name = "q.lora_A.default.weight"
    fill(model, 9.0)
    with LoraReferenceSnapshot(model, snapshot={name: torch.zeros(1, 3)}):
        values = trained(model)
        assert not values.pop(name).any()
        assert all((v == 9.0).all() for v in values.values())


@pytest.mark.parametrize("adapter", ["default", "policy"])
@pytest.mark.parametrize("file", [FILE, "other.safetensors"])
def test_a_folder_is_read_under_the_live_adapters_name(
    adapter: str, file: str, tmp_path: Path
) -> None:
    model = lora_model(adapter)
    folder = write(tmp_path, file_tensors(), file)
    for given in (folder, str(folder)):
        reference = LoraReferenceSnapshot.from_disk(
            model, given, adapter_name=adapter, weights_filename=file
        )
        assert len(reference) == 2
        with reference:
            assert all((v == 0.5).all() for v in trained(model).values())


def test_parameters_without_an_adapters_name_are_read_under_their_own(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    with LoraReferenceSnapshot.from_disk(model, write(tmp_path, {"weight": torch.zeros(1, 2)})):
        assert not model.weight.any()
    assert model.weight.any()


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=FILE):
        LoraReferenceSnapshot.from_disk(lora_model(), tmp_path / "nowhere")


# --- differences ----------------------------------------------------------------------------------


def from_disk(model: Any, folder: Path) -> Any:
    return LoraReferenceSnapshot.from_disk(model, folder)


def test_a_key_that_the_file_lacks(tmp_path: Path) -> None:
    tensors = file_tensors()
    del tensors["q.lora_B.weight"]
    folder = write(tmp_path, tensors)
    if OURS:
        with pytest.raises(ValueError, match=r"q\.lora_B\.weight is missing"):
            from_disk(lora_model(), folder)
    else:
        assert len(from_disk(lora_model(), folder)) == 1


def test_a_key_that_the_model_lacks(tmp_path: Path) -> None:
    folder = write(tmp_path, {**file_tensors(), "k.lora_A.weight": torch.zeros(1, 3)})
    given = {"nowhere": torch.zeros(1)}
    if OURS:
        with pytest.raises(ValueError, match=r"k\.lora_A\.weight does not belong"):
            from_disk(lora_model(), folder)
        with pytest.raises(ValueError, match="nowhere"):
            LoraReferenceSnapshot(lora_model(), snapshot=given)
    else:
        assert len(from_disk(lora_model(), folder)) == 2
        with LoraReferenceSnapshot(lora_model(), snapshot=given):
            pass


def test_a_shape_that_torch_would_broadcast(tmp_path: Path) -> None:
    folder = write(tmp_path, {**file_tensors(), "q.lora_A.weight": torch.zeros(1, 1)})
    if OURS:
        with pytest.raises(ValueError, match=r"q\.lora_A\.weight has shape \[1, 1\]"):
            from_disk(lora_model(), folder)
    else:
        with from_disk(lora_model(), folder):
            pass


def test_a_dtype_that_loses_digits(tmp_path: Path) -> None:
    model = lora_model().bfloat16()
    folder = write(tmp_path, file_tensors(0.1))
    if OURS:
        with pytest.raises(ValueError, match=r"float32 and loses digits in the model's .*bfloat16"):
            from_disk(model, folder)
    else:
        with from_disk(model, folder):
            assert not (trained(model)["q.lora_A.default.weight"].float() == 0.1).any()


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    folder = write(tmp_path, file_tensors(float("nan")))
    if OURS:
        with pytest.raises(ValueError, match="NaN"):
            from_disk(lora_model(), folder)
    else:
        assert len(from_disk(lora_model(), folder)) == 2


def test_a_model_that_trains_nothing() -> None:
    model = lora_model().requires_grad_(False)
    if OURS:
        with pytest.raises(ValueError, match="requires a gradient"):
            LoraReferenceSnapshot(model)
    else:
        assert len(LoraReferenceSnapshot(model)) == 0


def test_a_second_snapshot_inside_the_first_and_left_in_the_wrong_order() -> None:
    model = lora_model()
    first, second = LoraReferenceSnapshot(model), LoraReferenceSnapshot(model)
    fill(model, 9.0)
    first.__enter__()
    if OURS:
        with pytest.raises(RuntimeError, match="already active"):
            second.__enter__()
        first.__exit__(None, None, None)
        assert all((v == 9.0).all() for v in trained(model).values())
    else:
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert not any((v == 9.0).all() for v in trained(model).values())


def test_an_error_while_values_are_copied() -> None:
    model = lora_model()
    start = trained(model)
    names = list(start)
    fill(model, 9.0)
    given = {names[0]: torch.zeros_like(start[names[0]]), names[1]: torch.zeros(7, 7)}
    with pytest.raises((ValueError, RuntimeError)), LoraReferenceSnapshot(model, snapshot=given):
        pytest.fail("the block must not run")
    whole = all((v == 9.0).all() for v in trained(model).values())
    assert whole == OURS


def test_policy_and_reference_under_one_autocast() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    fill(model, 1.0)
    reference = LoraReferenceSnapshot(model)
    fill(model, 0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(1, 2))
        with reference, torch.no_grad():
            assert model(torch.ones(1, 2)).item() == (2.0 if OURS else 0.0)


def test_an_adapter_of_another_scale(tmp_path: Path) -> None:
    model = lora_model()
    model.peft_config = {"default": SimpleNamespace(lora_alpha=8)}
    folder = write(tmp_path, file_tensors())
    (folder / "adapter_config.json").write_text('{"lora_alpha": 16}')
    if OURS:
        with pytest.raises(ValueError, match="lora_alpha is 16, but 8"):
            from_disk(model, folder)
    else:
        assert len(from_disk(model, folder)) == 2


def test_an_adapter_that_is_merged_into_the_base() -> None:
    model = lora_model()
    model.q.merged = True
    reference = LoraReferenceSnapshot(model)
    if OURS:
        with pytest.raises(ValueError, match="q: its adapter is merged"), reference:
            pytest.fail("the block must not run")
    else:
        with reference:
            pass


def test_a_gradient_that_the_swap_would_falsify() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    reference = LoraReferenceSnapshot(model)
    fill(model, 9.0)
    with reference:
        inside = model(torch.ones(2, requires_grad=True)).sum()
    if OURS:
        with pytest.raises(RuntimeError, match="inplace"):
            inside.backward()
    else:
        inside.backward()


def test_a_change_of_the_tensors_that_a_snapshot_was_given() -> None:
    model = lora_model()
    given = trained(model)
    reference = LoraReferenceSnapshot(model, snapshot=given)
    for tensor in given.values():
        tensor.fill_(7.0)
    with reference:
        changed = all((v == 7.0).all() for v in trained(model).values())
    assert changed != OURS


def test_a_parameter_that_was_frozen_after_it_had_moved() -> None:
    model = lora_model()
    tracker = WeightDeltaTracker(model)
    fill(model, 9.0)
    model.requires_grad_(False)
    assert (tracker.delta() != (0.0, 0.0)) == OURS


def test_a_parameter_that_is_trained_only_since() -> None:
    model = lora_model()
    tracker = WeightDeltaTracker(model)
    model.q.base_layer.weight.requires_grad_(True)
    if OURS:
        with pytest.raises(ValueError, match=r"base_layer\.weight is trained since"):
            tracker.delta()
    else:
        assert tracker.delta() == (0.0, 0.0)


def test_the_step_of_weights_in_bfloat16() -> None:
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    fill(model, 256.0)
    tracker = WeightDeltaTracker(model)
    fill(model, -3.0)
    assert tracker.delta()[1] == (259.0 if OURS else 260.0)


def test_a_delta_of_weights_that_are_not_numbers() -> None:
    model = lora_model()
    tracker = WeightDeltaTracker(model)
    fill(model, float("nan"))
    if OURS:
        with pytest.raises(ValueError, match="NaN"):
            tracker.delta()
    else:
        assert tracker.delta()[1] == 0.0
