"""An adapter folder that a server would swallow is refused here, with the tensor's name."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldkit.errors import BadInput
from fieldkit.training.adapter import (
    adapter_sha,
    check_adapter,
    copy_adapter,
    is_quantised,
    linear_shapes,
    other_base,
    read_adapter,
    weight_bytes,
)

HIDDEN, KV, RANK = 8, 4, 2
LAYERS = 2
BF16_NAN = 0x7FC0


def write_safetensors(file: Path, tensors: dict[str, np.ndarray], dtype: str) -> None:
    """The format by hand, so that bfloat16 can be written without torch."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    tensors: dict[str, np.ndarray] = {"model.norm.weight": np.ones(HIDDEN, np.float32)}
    for i in range(LAYERS):
        attention = f"model.layers.{i}.self_attn"
        tensors[f"{attention}.q_proj.weight"] = np.ones((HIDDEN, HIDDEN), np.float32)
        tensors[f"{attention}.v_proj.weight"] = np.ones((KV, HIDDEN), np.float32)
    write_safetensors(folder / "model.safetensors", tensors, "F32")
    return folder


def lora_tensors(dtype: type = np.float32) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for i in range(LAYERS):
        for layer, out in (("q_proj", HIDDEN), ("v_proj", KV)):
            name = f"base_model.model.model.layers.{i}.self_attn.{layer}"
            tensors[f"{name}.lora_A.weight"] = np.zeros((RANK, HIDDEN), dtype)
            tensors[f"{name}.lora_B.weight"] = np.zeros((out, RANK), dtype)
    return tensors


def write_adapter(
    folder: Path, tensors: dict[str, np.ndarray], dtype: str = "F32", **config: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "adapter_model.safetensors", tensors, dtype)
    values = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 4,
        "target_modules": ["v_proj", "q_proj"],
        "bias": "none",
        "base_model_name_or_path": "somewhere",
    }
    (folder / "adapter_config.json").write_text(json.dumps(values | config))
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", lora_tensors())


def test_a_fitting_adapter_is_described(adapter: Path, model: Path) -> None:
    info = check_adapter(adapter, model)
    assert (info.rank, info.alpha, info.base_model) == (RANK, 4.0, "somewhere")
    assert info.target_modules == ("q_proj", "v_proj")
    assert info.sha == adapter_sha(adapter)
    assert check_adapter(str(adapter), str(model)) == info
    assert adapter_sha(str(adapter)) == info.sha


def test_the_identity_follows_weights_and_config_and_nothing_else(adapter: Path) -> None:
    before = adapter_sha(adapter)
    (adapter / "canary.json").write_text("{}")
    assert adapter_sha(adapter) == before
    tensors = lora_tensors()
    next(iter(tensors.values()))[0, 0] = 1.0
    write_adapter(adapter, tensors)
    changed_weights = adapter_sha(adapter)
    write_adapter(adapter, tensors, lora_alpha=8)
    assert len({before, changed_weights, adapter_sha(adapter)}) == 3


UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|v_proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:q_proj|v_proj)))"
)


def test_a_pattern_is_the_layers_that_it_chose(tmp_path: Path, model: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", lora_tensors(), target_modules=UNSLOTH)
    info = check_adapter(folder, model)
    assert (info.target_modules, info.pattern) == (("q_proj", "v_proj"), UNSLOTH)


@pytest.mark.parametrize(
    ("pattern", "layer", "told"),
    [
        (r".*layers\.0\..*_proj", "_proj", "leaves out model.layers.1.self_attn.q_proj of"),
        (r".*\.(q|v)_proj", "q_proj", "chooses model.layers.0.self_attn.v_proj of"),
        ("all-linear", "_proj", "leaves out model.layers.0.self_attn.q_proj of"),
        ("all-linear", "none", "chooses no module of"),
    ],
)
def test_a_pattern_that_chooses_other_modules_than_have_tensors_is_refused(
    tmp_path: Path, model: Path, pattern: str, layer: str, told: str
) -> None:
    tensors = {name: t for name, t in lora_tensors().items() if layer in name}
    folder = write_adapter(tmp_path / "adapter", tensors, target_modules=pattern)
    with pytest.raises(BadInput, match=told):
        check_adapter(folder, model)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"layers_to_transform": 0}, "only some layers"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"r": 0}, "r: .* greater than 0"),
        ({"target_modules": ["layers.0.q_proj"]}, "'layers.0.q_proj': give layer names, not paths"),
        ({"r": True}, "r: .* valid integer"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"target_modules": "q_proj("}, "'q_proj\\(': no regular expression"),
        ({"target_modules": []}, "target_modules"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa' changes the base's weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights: 'olora' changes the base's weights"),
    ],
)
def test_what_cannot_be_served_and_trained_alike_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    folder = write_adapter(tmp_path / "adapter", lora_tensors(), **config)
    with pytest.raises(BadInput, match=named):
        read_adapter(folder)


def test_every_variant_of_lora_that_peft_has_is_refused_by_name(tmp_path: Path) -> None:
    """Some change the base, some add noise to a forward pass; a server computes plain LoRA."""
    from peft import LoraConfig

    variants = [f.name for f in fields(LoraConfig) if f.metadata.get("is_lora_variant")]
    assert {"use_dora", "kasa_config"} <= set(variants)
    for name in variants:
        config: dict[str, Any] = {name: {"set": True}}
        folder = write_adapter(tmp_path / name, lora_tensors(), **config)
        with pytest.raises(BadInput, match=rf"adapter_config\.json: {name}: the adapter uses"):
            read_adapter(folder)


@pytest.mark.parametrize("init", [True, False, "gaussian"])
def test_an_initialisation_that_leaves_the_base_alone_is_read(tmp_path: Path, init: Any) -> None:
    folder = write_adapter(tmp_path / "adapter", lora_tensors(), init_lora_weights=init)
    assert read_adapter(folder).rank == RANK


@pytest.mark.parametrize(
    "model",
    [
        "Somewhere",
        "/home/me/models/somewhere/",
        "org/somewhere",
        "/cache/hub/models--org--somewhere/snapshots/0123abcd",
    ],
)
def test_an_adapter_is_of_a_base_that_is_called_like_its_own(adapter: Path, model: str) -> None:
    assert other_base(read_adapter(adapter), model) is None


@pytest.mark.parametrize(
    "model", ["org/somewhere-else", "/somewhere/model", "hub/models--somewhere--x/snapshots/1", ""]
)
def test_a_base_of_another_name_is_told(adapter: Path, model: str) -> None:
    assert other_base(read_adapter(adapter), model) == "somewhere"


@pytest.mark.parametrize(
    ("named", "fewer"),
    [
        ("Qwen2.5-7B-Instruct-bnb-4bit", True),
        ("qwen2.5-7b-instruct-unsloth-bnb-4bit", True),
        ("Qwen2.5-7B-Instruct-AWQ", True),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", True),
        ("Qwen2.5-7B-Instruct-1M", False),
        ("Qwen2.5-7B-bnb-4bit", False),
    ],
)
def test_a_base_of_fewer_bits_is_told_from_another_base(named: str, fewer: bool) -> None:
    assert is_quantised(named, "/models/Qwen2.5-7B-Instruct") is fewer


def test_an_adapter_that_names_no_base_raises_no_doubt(adapter: Path) -> None:
    assert other_base(replace(read_adapter(adapter), base_model=""), "org/model") is None


@pytest.mark.parametrize("missing", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_missing_file_is_named(adapter: Path, missing: str) -> None:
    (adapter / missing).unlink()
    with pytest.raises(BadInput, match=missing):
        read_adapter(adapter)


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no \*\.safetensors there, so this is no model"):
        linear_shapes(tmp_path)


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text('{"quantization_config": {"bits": 4}}')
    with pytest.raises(BadInput, match="the weights are quantised"):
        linear_shapes(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path, model: Path) -> None:
    tensors = lora_tensors()
    gone = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    del tensors[gone]
    with pytest.raises(BadInput, match=gone):
        check_adapter(write_adapter(tmp_path / "adapter", tensors), model)


def test_an_extra_tensor_is_named(tmp_path: Path, model: Path) -> None:
    extra = "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"
    tensors = lora_tensors() | {extra: np.zeros((RANK, HIDDEN), np.float32)}
    with pytest.raises(BadInput, match=extra):
        check_adapter(write_adapter(tmp_path / "adapter", tensors), model)


def test_a_halved_shape_is_named_with_both_shapes(tmp_path: Path, model: Path) -> None:
    tensors = lora_tensors()
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    tensors[name] = tensors[name][:, : HIDDEN // 2].copy()
    with pytest.raises(BadInput, match=r"layers\.0\.self_attn\.q_proj.*\[2, 4\].*\[2, 8\]"):
        check_adapter(write_adapter(tmp_path / "adapter", tensors), model)


def test_a_target_that_the_model_lacks_is_named(tmp_path: Path, model: Path) -> None:
    folder = write_adapter(
        tmp_path / "adapter", lora_tensors(), target_modules=["q_proj", "v_proj", "c_attn"]
    )
    with pytest.raises(BadInput, match="c_attn"):
        check_adapter(folder, model)


def test_a_target_in_an_expert_is_refused(tmp_path: Path, model: Path) -> None:
    expert = "model.layers.0.mlp.experts.0.gate_proj"
    weights = {f"{expert}.weight": np.ones((HIDDEN, HIDDEN), np.float32)}
    write_safetensors(model / "model-2.safetensors", weights, "F32")
    folder = write_adapter(tmp_path / "adapter", lora_tensors(), target_modules=["gate_proj"])
    said = f"target_modules: gate_proj: {expert} is an expert's"
    with pytest.raises(BadInput, match=re.escape(said)):
        check_adapter(folder, model)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(tmp_path: Path, model: Path, value: float) -> None:
    tensors = lora_tensors()
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    tensors[name][3, 1] = value
    with pytest.raises(BadInput, match=rf"{name} holds 1 NaN"):
        check_adapter(write_adapter(tmp_path / "adapter", tensors), model)


def test_bfloat16_is_checked_without_torch(tmp_path: Path, model: Path) -> None:
    tensors = lora_tensors(np.uint16)
    good = write_adapter(tmp_path / "good", tensors, "BF16")
    assert check_adapter(good, model).rank == RANK
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    tensors[name][0, 0] = BF16_NAN
    with pytest.raises(BadInput, match=name):
        check_adapter(write_adapter(tmp_path / "bad", tensors, "BF16"), model)


def test_whole_numbers_are_no_weights(tmp_path: Path, model: Path) -> None:
    with pytest.raises(BadInput, match="I32"):
        check_adapter(write_adapter(tmp_path / "adapter", lora_tensors(np.int32), "I32"), model)


def test_a_file_cut_short_is_refused(adapter: Path, model: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-16])
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        check_adapter(adapter, model)
    file.write_bytes(b"<html>404</html>")
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        check_adapter(adapter, model)


def test_a_folder_that_is_no_model_is_named(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no model folder"):
        check_adapter(adapter, tmp_path / "nowhere")


def test_a_copy_of_an_adapter_is_the_same_adapter_and_nothing_else(
    adapter: Path, tmp_path: Path
) -> None:
    (adapter / "README.md").write_text("of mine")
    (adapter / "canary.json").write_text("{}")
    (tmp_path / "copy").mkdir()
    copy_adapter(adapter, tmp_path / "copy")
    assert adapter_sha(tmp_path / "copy") == adapter_sha(adapter)
    assert not (tmp_path / "copy" / "README.md").exists()
    assert (tmp_path / "copy" / "canary.json").exists()


def test_weights_are_counted_from_the_shapes_at_the_width_they_are_loaded_with(
    adapter: Path,
) -> None:
    numbers = LAYERS * (2 * RANK * HIDDEN + RANK * (HIDDEN + KV))
    assert weight_bytes(adapter, 2) == 2 * numbers
    assert weight_bytes(adapter, 4) == 4 * numbers


def test_weights_that_a_folder_holds_in_two_forms_are_counted_once(model: Path) -> None:
    once = weight_bytes(model, 2)
    again = model / "consolidated.safetensors"
    again.write_bytes((model / "model.safetensors").read_bytes())
    assert weight_bytes(model, 2) == once
    first = model / "model-00001-of-00001.safetensors"
    (model / "model.safetensors").rename(first)
    index = {"weight_map": {"model.norm.weight": first.name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(model, 2) == once
    first.unlink()
    with pytest.raises(
        BadInput, match=rf"{first.name}: no such file, but model\.safetensors\.index"
    ):
        weight_bytes(model, 2)


def test_a_config_that_is_no_object_is_refused(adapter: Path) -> None:
    (adapter / "adapter_config.json").write_text("[]")
    with pytest.raises(BadInput, match=r"adapter_config\.json: expected an object, found list"):
        read_adapter(adapter)
