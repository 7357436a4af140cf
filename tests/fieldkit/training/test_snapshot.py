"""A reference that is swapped in for a while leaves no trace, and fits exactly or not at all."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fieldkit.errors import AlreadySwapped, BadInput
from fieldkit.training import snapshot as snapshot_module
from fieldkit.training.snapshot import LoraReferenceSnapshot
from tests.fieldkit.peft_models import (
    ARCHITECTURES,
    logits,
    move,
    peft_model,
    same,
    values,
)

FILE = "adapter_model.safetensors"


@pytest.fixture
def model() -> Any:
    return peft_model()


def saved(model: Any, folder: Path, **settings: Any) -> Path:
    model.save_pretrained(str(folder), save_embedding_layers=False, **settings)
    return folder


def edited(folder: Path, **changes: Any) -> Path:
    """Rewrite a saved adapter: `remove` a key, `add` one, or `cast` or `reshape` the first."""
    tensors = load_file(folder / FILE)
    first = min(tensors)
    match changes:
        case {"remove": True}:
            del tensors[first]
        case {"add": name}:
            tensors[name] = torch.zeros(1)
        case {"value": value}:
            tensors[first] = value(tensors[first]).contiguous()
    save_file(tensors, folder / FILE)
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_model_scores_as_the_saved_adapter_inside_and_as_itself_after(
    architecture: str, tmp_path: Path
) -> None:
    model = peft_model(architecture)
    as_saved = logits(model)
    saved(model, tmp_path)
    move(model)
    as_trained, trained = logits(model), values(model)
    reference = LoraReferenceSnapshot.from_disk(model, tmp_path)
    with reference:
        assert torch.equal(logits(model), as_saved)
    assert not torch.equal(as_saved, as_trained)
    assert torch.equal(logits(model), as_trained)
    assert same(values(model), trained)
    assert len(reference) == len(load_file(tmp_path / FILE))


@pytest.mark.parametrize(
    "settings",
    [
        {"modules_to_save": ["lm_head"]},
        {"use_dora": True},
        {"bias": "lora_only"},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"trainable_token_indices": [1, 2]},
    ],
    ids=lambda s: next(iter(s)),
)
def test_every_kind_of_trained_tensor_is_found_in_pefts_own_file(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    model = peft_model("qwen2", **settings)
    at_start = values(model)
    saved(model, tmp_path)
    move(model)
    trained = values(model)
    with LoraReferenceSnapshot.from_disk(model, tmp_path):
        assert same(values(model), at_start)
    assert same(values(model), trained)


@budget(max_examples=25)
@given(
    scale=st.sampled_from([1e-38, 1e-7, 1.0, 1e30]),
    steps=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
)
def test_snapshot_train_swap_restore_is_the_identity_to_the_bit(
    scale: float, steps: int, dtype: torch.dtype
) -> None:
    model = torch.nn.Linear(5, 3).to(dtype)
    with torch.no_grad():
        model.weight.mul_(min(scale, torch.finfo(dtype).max / 4)).clamp_(-3e4, 3e4)
    at_start = values(model)
    reference = LoraReferenceSnapshot(model)
    for seed in range(steps):
        move(model, 1e-3, seed=seed)
        trained, objects = values(model), dict(model.named_parameters())
        with reference:
            assert same(values(model), at_start)
        assert same(values(model), trained)
        assert all(p is objects[name] for name, p in model.named_parameters())


def test_a_graph_from_before_the_block_gives_the_same_gradient_after_it(model: Any) -> None:
    ids = torch.arange(4)[None]
    model(ids).logits.sum().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    reference = LoraReferenceSnapshot(model)
    move(model)
    move(model, -0.1)  # the same values but for rounding: gradients stay comparable
    model.zero_grad()
    loss = model(ids).logits.sum()
    with reference, torch.no_grad():
        model(ids)
    loss.backward()
    for name, gradient in expected.items():
        now = model.get_parameter(name).grad
        assert torch.allclose(now, gradient, rtol=1e-3, atol=1e-5), name


def test_a_graph_that_the_swap_would_falsify_raises() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    reference = LoraReferenceSnapshot(model)
    move(model)
    with reference:
        inside = model(torch.ones(2, requires_grad=True)).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        inside.backward()
    outside = model(torch.ones(2, requires_grad=True)).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"), reference:
        outside.backward()


def test_an_optimizer_keeps_hold_of_its_parameters(model: Any) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    with LoraReferenceSnapshot(model):
        pass
    before = values(model)
    model(torch.arange(4)[None]).logits.sum().backward()
    optimizer.step()
    assert not same(values(model), before)


def test_nesting_raises_and_the_policy_is_whole(model: Any) -> None:
    first = LoraReferenceSnapshot(model)
    move(model)
    second = LoraReferenceSnapshot(model)
    move(model)
    trained = values(model)
    for outer, inner in ((first, first), (first, second), (second, first)):
        with (
            outer,
            pytest.raises(AlreadySwapped, match=r"lora_A.*already active"),
            inner,
        ):
            pytest.fail("the block must not run")
        assert same(values(model), trained)


def test_an_error_inside_the_block_restores_too(model: Any) -> None:
    reference = LoraReferenceSnapshot(model)
    move(model)
    trained = values(model)
    for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), reference:
            raise error
        assert same(values(model), trained)


def test_ctrl_c_at_any_copy_leaves_the_policy_whole(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = LoraReferenceSnapshot(model)
    move(model)
    trained = values(model)
    put, copies = snapshot_module._put, iter(range(0))

    def interrupted(*given: Any) -> None:
        put(*given)
        if next(copies) in presses:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(snapshot_module, "_put", interrupted)
    n = len(reference)
    ways = [*({press} for press in range(2 * n)), {0, 1, 2}, {n, n + 1}, {n - 1, n + 1, n + 3}]
    for presses in ways:
        copies = iter(range(1000))
        with pytest.raises(KeyboardInterrupt), reference:
            pass
        assert same(values(model), trained), presses
    presses = set()
    copies = iter(range(1000))
    with reference:  # it can be used again
        pass
    reference.restore()
    assert same(values(model), trained)


def test_several_adapters_are_kept_apart(tmp_path: Path) -> None:
    model = peft_model()
    model.add_adapter("second", model.peft_config["default"])
    model.set_adapter("second")
    move(model, seed=7)
    saved(model, tmp_path, selected_adapters=["second"])
    at_start = values(model)
    move(model)
    with LoraReferenceSnapshot.from_disk(model, tmp_path / "second", adapter_name="second"):
        assert same(values(model), at_start)
    with pytest.raises(BadInput, match="no adapter 'third'; it has default, second"):
        LoraReferenceSnapshot.from_disk(model, tmp_path / "second", adapter_name="third")
    model.set_adapter("default")
    assert all("default" in name for name in LoraReferenceSnapshot(model).tensors)


def test_an_adapter_loaded_for_inference_can_be_swapped_too(tmp_path: Path) -> None:
    model = peft_model()
    saved(model, tmp_path)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert len(LoraReferenceSnapshot.from_disk(model, tmp_path)) == 8
    with pytest.raises(BadInput, match="no parameter of the model requires a gradient"):
        LoraReferenceSnapshot(model)


def test_a_trained_parameter_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    model = peft_model()
    saved(model, tmp_path)
    model.get_parameter("base_model.model.model.norm.weight").requires_grad_(True)
    assert any("norm" in name for name in LoraReferenceSnapshot(model).tensors)
    with pytest.raises(BadInput, match=rf"{FILE}: base_model\.model\.model\.norm\.weight is miss"):
        LoraReferenceSnapshot.from_disk(model, tmp_path)


def test_tied_weights_are_one_under_either_name(tmp_path: Path) -> None:
    model: Any = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    assert len(LoraReferenceSnapshot(model)) == 3
    biases = {f"{name}.bias": torch.zeros(2) for name in "ab"}
    for name in "ab":
        save_file({f"{name}.weight": torch.zeros(2, 2), **biases}, tmp_path / FILE)
        with LoraReferenceSnapshot.from_disk(model, tmp_path):
            assert not model["a"].weight.any()
            assert not model["b"].weight.any()
        assert model["a"].weight.all()


def test_a_tied_parameter_that_a_file_holds_twice_is_one_value(tmp_path: Path) -> None:
    model: Any = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    apart = LoraReferenceSnapshot(model)
    model["b"].weight = model["a"].weight
    rest = {f"{name}.bias": torch.zeros(2) for name in "ab"}
    twice = {"a.weight": torch.zeros(2, 2), "b.weight": torch.zeros(2, 2)}
    save_file(twice | rest, tmp_path / FILE)
    own = values(model)
    with LoraReferenceSnapshot.from_disk(model, tmp_path) as reference:
        assert not model["b"].weight.any()
    assert len(reference) == 3
    assert same(values(model), own)
    with pytest.raises(BadInput, match=r"b\.weight has been tied to a\.weight since"), apart:
        pytest.fail("the block must not run")
    twice["b.weight"] = torch.ones(2, 2)
    save_file(twice | rest, tmp_path / FILE)
    with pytest.raises(BadInput, match=r"b\.weight differs from a\.weight, which it is tied to"):
        LoraReferenceSnapshot.from_disk(model, tmp_path)


def test_wrappers_do_not_change_what_a_file_calls_a_parameter(tmp_path: Path) -> None:
    model = peft_model()
    saved(model, tmp_path)
    wrapped = torch.nn.ModuleDict({"module": torch.nn.ModuleDict({"_orig_mod": model})})
    assert len(LoraReferenceSnapshot.from_disk(wrapped, tmp_path)) == 8


def test_a_model_that_accelerate_placed_is_swapped_and_an_offloaded_one_named(
    tmp_path: Path,
) -> None:
    from accelerate import cpu_offload, dispatch_model, infer_auto_device_map

    model = peft_model()
    saved(model, tmp_path)
    dispatch_model(model, infer_auto_device_map(model), force_hooks=True)
    at_start = logits(model)
    move(model)
    with LoraReferenceSnapshot.from_disk(model, tmp_path):
        assert torch.equal(logits(model), at_start)
    offloaded = cpu_offload(peft_model())
    with pytest.raises(BadInput, match=r"lora_A.*offloaded"):
        LoraReferenceSnapshot(offloaded)


RANK = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from fieldkit.training import LoraReferenceSnapshot, WeightDeltaTracker

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
model = torch.nn.Linear(4, 2, bias=False)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
own = model.weight.to_local()
trained = own.clone()
tracker = WeightDeltaTracker(model)
with LoraReferenceSnapshot.from_disk(model, folder):
    print(model.weight.to_local().tolist())
assert len(LoraReferenceSnapshot(model)) == 1
assert torch.equal(own, trained)
with torch.no_grad():
    own.add_(rank + 1.0)
print(round(tracker.delta()[1], 4))
dist.destroy_process_group()
"""


def test_each_rank_of_a_sharded_model_swaps_and_measures_its_own_part(tmp_path: Path) -> None:
    save_file({"weight": torch.arange(8.0).reshape(2, 4)}, tmp_path / FILE)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[0].splitlines() for process in ranks]
    assert said == [["[[0.0, 1.0, 2.0, 3.0]]", "1.0"], ["[[4.0, 5.0, 6.0, 7.0]]", "2.0"]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_values_wait_in_pinned_memory_and_a_swap_keeps_none_of_the_gpus() -> None:
    model = torch.nn.Linear(64, 64).cuda()
    reference, at_start = LoraReferenceSnapshot(model), values(model)
    assert all(tensor.is_pinned() for tensor in reference.tensors.values())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    trained = values(model)
    for _ in range(3):
        held = torch.cuda.memory_allocated()
        with reference:
            assert same(values(model), at_start)
        assert same(values(model), trained)
        assert torch.cuda.memory_allocated() == held


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"remove": True}, "lora_A.weight is missing"),
        ({"add": "other.lora_A.weight"}, r"other\.lora_A\.weight does not belong"),
        ({"value": lambda t: t[:1]}, r"lora_A\.weight has shape \[1, 16\], \[2, 16\] is needed"),
        ({"value": lambda t: t.double() + 1e-12}, r"lora_A.*torch\.float64 and loses digits"),
        ({"value": lambda t: t * torch.inf}, "lora_A.*holds NaN or infinite values"),
    ],
    ids=["missing", "extra", "shape", "dtype", "not finite"],
)
def test_a_file_that_does_not_fit_is_named_and_nothing_is_swapped(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    model = peft_model()
    before = values(model)
    edited(saved(model, tmp_path), **change)
    with pytest.raises(BadInput, match=named):
        LoraReferenceSnapshot.from_disk(model, tmp_path)
    assert same(values(model), before)


@pytest.mark.parametrize("order", ["policy first", "reference first"])
def test_under_one_autocast_policy_and_reference_have_each_their_own_weights(order: str) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    reference = LoraReferenceSnapshot(model)
    torch.nn.init.zeros_(model.weight)
    x = torch.ones(1, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # keeps its casts of weights to the end
        if order == "policy first":
            model(x)
        with reference, torch.no_grad():
            assert model(x).item() == 2.0
        loss = model(x).sum()
    assert loss.item() == 0.0
    loss.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def test_a_swap_in_inference_mode_and_one_outside_of_it() -> None:
    model = torch.nn.Linear(2, 1)
    reference, trained = LoraReferenceSnapshot(model), values(model)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode(), reference:
            model(torch.ones(2))
    assert same(values(model), trained)


def test_an_adapter_that_is_merged_into_the_base_is_not_swapped_without_effect(model: Any) -> None:
    reference = LoraReferenceSnapshot(model)
    model.merge_adapter()
    with pytest.raises(BadInput, match="q_proj: its adapter is merged"), reference:
        pytest.fail("the block must not run")
    model.unmerge_adapter()
    with reference:
        pass


def test_a_swap_into_an_adapter_that_is_not_used_is_refused(model: Any, tmp_path: Path) -> None:
    """Trainer and reference would be the same policy, and the KL 0."""
    saved(model, tmp_path)
    model.add_adapter("policy", model.peft_config["default"])
    model.set_adapter("policy")
    unused = LoraReferenceSnapshot.from_disk(model, tmp_path)
    with (
        pytest.raises(BadInput, match="is of adapter 'default', and the model uses policy"),
        unused,
    ):
        pytest.fail("the block must not run")
    used = LoraReferenceSnapshot.from_disk(model, tmp_path, adapter_name="policy")
    with used:
        pass
    with model.disable_adapter(), pytest.raises(BadInput, match="the model uses none"), used:
        pytest.fail("the block must not run")


def test_a_scale_that_an_older_file_does_not_name_is_peft_s_default(tmp_path: Path) -> None:
    model = peft_model(use_rslora=True)
    config = saved(model, tmp_path) / "adapter_config.json"
    said = json.loads(config.read_text())
    del said["use_rslora"]
    config.write_text(json.dumps(said))
    with pytest.raises(BadInput, match="use_rslora is False, but True in the model's"):
        LoraReferenceSnapshot.from_disk(model, tmp_path)


@pytest.mark.parametrize("setting", [{"lora_alpha": 3}, {"use_rslora": True}], ids=str)
def test_a_folder_whose_adapter_has_another_scale_is_named(
    setting: dict[str, Any], tmp_path: Path
) -> None:
    saved(peft_model(**setting), tmp_path)
    with pytest.raises(BadInput, match=rf"adapter_config\.json: {next(iter(setting))} is"):
        LoraReferenceSnapshot.from_disk(peft_model(), tmp_path)
    LoraReferenceSnapshot.from_disk(peft_model(**setting), tmp_path)


def test_a_narrower_file_fits_because_no_digit_is_lost(tmp_path: Path) -> None:
    model = peft_model()
    edited(saved(model, tmp_path), value=lambda t: t.bfloat16())
    LoraReferenceSnapshot.from_disk(model, tmp_path)


def test_a_missing_or_broken_file_is_named(model: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.safetensors: no such file"):
        LoraReferenceSnapshot.from_disk(model, tmp_path)
    (tmp_path / "w.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        LoraReferenceSnapshot.from_disk(model, tmp_path, weights_filename="w.safetensors")


def test_chosen_values_may_be_some_but_must_be_known(model: Any) -> None:
    name, parameter = next((n, p) for n, p in model.named_parameters() if p.requires_grad)
    chosen = {name: torch.zeros_like(parameter)}
    trained = values(model)
    with LoraReferenceSnapshot(model, snapshot=chosen):
        assert not parameter.any()
        assert same(values(model), trained | chosen)
    with pytest.raises(BadInput, match=r"snapshot: nowhere: the model has no parameter"):
        LoraReferenceSnapshot(model, snapshot={"nowhere": torch.zeros(1)})


def test_a_later_change_reaches_neither_a_taken_nor_a_given_snapshot(model: Any) -> None:
    given = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    snapshots = LoraReferenceSnapshot(model), LoraReferenceSnapshot(model, snapshot=given)
    before = {name: t.clone() for name, t in given.items()}
    move(model)
    for tensor in given.values():
        tensor.zero_()
    assert all(same(dict(s.tensors), before) for s in snapshots)


def test_a_model_that_changed_since_is_named(model: Any) -> None:
    reference = LoraReferenceSnapshot(model)
    move(model, 1e-6)
    wide = LoraReferenceSnapshot(model)
    model.to(torch.bfloat16)
    with pytest.raises(BadInput, match="loses digits"), wide:
        pytest.fail("the block must not run")
    with wide.to(torch.bfloat16):
        pass
    model.unload()
    with pytest.raises(BadInput, match="no such parameter any more"), reference:
        pytest.fail("the block must not run")


def test_swapping_ten_thousand_times_keeps_nothing(model: Any) -> None:
    small = torch.nn.Linear(2, 2)
    reference = LoraReferenceSnapshot(small)
    for _ in range(100):
        with reference:
            pass
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(10_000):
        with reference:
            pass
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert snapshot_module._swapped == set()
