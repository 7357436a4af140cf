"""What a step holds by the formula is what it holds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen3Config, Qwen3MoeConfig

from fieldkit.training.adapter import read_adapter
from scripts.base.checkout import ROOT
from tests.trainer.conftest import SIZES, make_adapter, make_group
from tests.trainer.footprint.conftest import SETTINGS, with_gpus
from trainer.batch import collect
from trainer.footprint import step_bytes
from trainer.footprint.step_bytes import activation_bytes, forecast, item_bytes_of
from trainer.scoring import shared_prefix
from trainer.scoring.micro_batch import copies, tensors, tokens
from trainer.scoring.policy import Policy, load_policy
from trainer.scoring.shared_prefix import Row
from trainer.settings import TrainerSettings

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def saved_bytes(policy: Policy, run: Callable[[], object]) -> int:
    """What autograd saves for the backward pass of `run`, the model's weights left out, and masks,
    which all layers and micro-batches share."""
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    saved: dict[int, int] = {}
    kept: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_mask = tensor.ndim == 2 and bool(torch.isinf(tensor).any())
        if storage.data_ptr() not in weights and not is_mask:
            saved[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(saved.values())


def test_the_forecast_counts_every_process_where_they_share_the_host(
    tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, alone = read_adapter(adapter), replace(SETTINGS, tokens_per_microbatch=1024)
    two = replace(alone, processes=2)
    with_gpus(monkeypatch, 0)
    one = forecast(tiny_model, alone, 4, info)
    both = 2 * one + step_bytes._STARTER_BYTES
    assert forecast(tiny_model, two, 4, info) == both
    with_gpus(monkeypatch, 2)
    assert forecast(tiny_model, two, 4, info) == forecast(tiny_model, alone, 4, info) < one
    with_gpus(monkeypatch, 2, visible="")
    assert forecast(tiny_model, two, 4, info) == both, "CUDA finds none of them"


@pytest.mark.parametrize(
    ("dtype", "served", "gpus", "visible", "size"),
    [
        ("bf16", "bfloat16", 0, None, 2),
        ("fp32", "bfloat16", 1, None, 4),
        ("auto", "bfloat16", 1, None, 2),
        ("auto", "bfloat16", 1, "", 4),
        ("auto", "bfloat16", 0, None, 4),  # it is measured, and may be the larger one
        ("auto", "float16", 1, None, 4),
        ("auto", "float32", 1, None, 4),
    ],
)
def test_a_weight_has_the_size_in_which_this_machine_may_load_it(
    dtype: Any,
    served: Any,
    gpus: int,
    visible: str | None,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_gpus(monkeypatch, gpus, visible)
    assert item_bytes_of(TrainerSettings(dtype=dtype, serving_dtype=served)) == size


KINDS = [(4, False), (2, False), (2, True)]
"""Bytes of a number, and whether attention is written out."""


def with_attention(monkeypatch: pytest.MonkeyPatch, *, written_out: bool) -> None:
    """On a processor that multiplies bfloat16, or one that does not."""
    monkeypatch.setattr(shared_prefix, "_multiplies_bf16", lambda: written_out)


@pytest.fixture
def a_model(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model, or one of another kind."""
    if request.param == "llama":
        return tiny_model
    make: Any = AutoModelForCausalLM.from_config
    config: Any = Qwen3Config(**SIZES, head_dim=16)  # each head has a norm, and twice the width
    if request.param == "gemma3":  # and a layer has four norms, not Llama's
        config = Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=64)
    if request.param == "experts":
        config = Qwen3MoeConfig(
            **SIZES, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=80
        )
    make(config).save_pretrained(tmp_path / "other")
    return tmp_path / "other"


ATTENTIONS = ("q_proj", "v_proj")


@pytest.mark.parametrize(("item_bytes", "written_out"), KINDS)
@pytest.mark.parametrize(
    ("a_model", "targets"),
    [
        *product(("llama", "qwen3", "gemma3"), (ATTENTIONS, LINEAR)),
        ("experts", ATTENTIONS),  # an expert's LoRA is refused
    ],
    indirect=["a_model"],
)
def test_a_token_keeps_what_the_model_saves_for_its_backward_pass(
    a_model: Path,
    tmp_path: Path,
    targets: tuple[str, ...],
    item_bytes: int,
    written_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_attention(monkeypatch, written_out=written_out)
    dtype = {2: torch.bfloat16, 4: torch.float32}[item_bytes]
    info = read_adapter(make_adapter(a_model, tmp_path / "lora", seed=1, targets=targets))
    policy = load_policy(a_model, info, dtype, gradient_checkpointing=False)
    ids = torch.zeros(1, 256, dtype=torch.long)
    alone = Row.of([(*range(128),), (*range(128, 256),)])
    a_token = saved_bytes(
        policy, lambda: policy.model(input_ids=ids, logits_to_keep=1, row=alone)
    ) / (2 * 128)
    forecast = activation_bytes(
        a_model,
        item_bytes,
        checkpointing=False,
        targets=info.target_modules,
        written_out=written_out,
    )
    assert forecast == pytest.approx(a_token, rel=0.15)


ON_AN_H200 = {
    (6_397, False): 45.3,
    (11_676, False): 70.6,
    (6_397, True): 17.1,
    (11_676, True): 19.2,
}
"""Positions of the largest micro-batch, whether activations are made again, and the peak in GiB, of
a LoRA on all linear layers of Qwen 2.5 7B (docs/PERFORMANCE-gpu.md)."""


@pytest.mark.parametrize("again", [False, True])
def test_a_further_token_is_what_a_gpu_held_for_one(again: bool) -> None:
    folder = ROOT / "scripts/prepare/capacity/models/Qwen2.5-7B-Instruct"
    (few, low), (many, high) = ((n, peak) for (n, a), peak in ON_AN_H200.items() if a == again)
    token = activation_bytes(folder, 2, again, targets=LINEAR, on_gpu=True)
    assert token == pytest.approx((high - low) * 2**30 / (many - few), rel=0.05)
    wide = activation_bytes(folder, 4, again, targets=LINEAR, on_gpu=True)
    assert wide == activation_bytes(folder, 4, again, targets=LINEAR), "whose layers are no others"


@pytest.mark.parametrize(("item_bytes", "written_out"), KINDS)
@pytest.mark.parametrize(("attempts", "prompt"), [(8, 200), (2, 6)])
def test_a_shared_row_keeps_keys_and_values_of_what_it_shares_again_for_each_sequence(
    attempts: int,
    prompt: int,
    tiny_model: Path,
    adapter: Path,
    item_bytes: int,
    written_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_attention(monkeypatch, written_out=written_out)
    info = read_adapter(adapter)
    dtype = {2: torch.bfloat16, 4: torch.float32}[item_bytes]
    policy = load_policy(tiny_model, info, dtype, gradient_checkpointing=False)
    group = make_group(
        random.Random(0), "a", "t", rewards=[0, 1] * (attempts // 2), prompt=[7] * prompt
    )
    segments = collect([group], SETTINGS).segments
    micro = tensors(segments, torch.device("cpu"), shared=True)
    saved = saved_bytes(policy, lambda: policy.logprobs(micro, 1.0))
    _, per_token, per_copy = step_bytes.bytes_of_step(
        tiny_model, SETTINGS, item_bytes, info, on_gpu=False, tcmalloc=True
    )
    if written_out:
        per_token -= 4 * step_bytes._A_SCORE  # not saved: a block's, while it is computed
    n, copied = tokens(segments, shared=True), copies(segments, shared=True)
    assert copied >= (attempts - 1) * prompt
    assert n + copied == sum(s.n_inputs for s in segments)
    assert n * per_token + copied * per_copy == pytest.approx(saved, rel=0.15)


def test_more_lora_targets_and_a_larger_adapter_need_more(
    tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, 0)
    info = read_adapter(adapter)
    every = replace(info, target_modules=(*info.target_modules, "gate_proj", "down_proj"))
    needs = [forecast(tiny_model, SETTINGS, 4, a) for a in (info, every)]
    assert needs[0] < needs[1]
    assert forecast(tiny_model, SETTINGS, 4, info, longest_segment=10**5) > needs[0]
    assert forecast(tiny_model, SETTINGS, 4, info, longest_segment=10) == needs[0]
    assert forecast(tiny_model, SETTINGS, 4, info, tcmalloc=True) < needs[0]


def test_checkpointing_and_a_narrow_base_need_less(tiny_model: Path, tmp_path: Path) -> None:
    full = activation_bytes(tiny_model, 4, checkpointing=False)
    assert activation_bytes(tiny_model, 2, checkpointing=False) < full
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 8}))
    checkpointed, kept = (activation_bytes(tmp_path, 4, checkpointing=c) for c in (True, False))
    assert checkpointed < kept
    assert 3.9 * full < kept < 4 * full, "what all layers share is there once"
