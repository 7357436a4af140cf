"""The dtype in which the base's weights are kept and computed with. How a policy scores is in
`test_gradient`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fieldkit.errors import BadInput
from fieldkit.training.adapter import read_adapter
from tests.fieldkit.peft_models import peft_model
from trainer.canary import _score
from trainer.scoring import policy, shared_prefix
from trainer.scoring.fused_layers import fuse
from trainer.scoring.lean_layers import keep_less
from trainer.scoring.policy import Policy, load_policy, training_dtype

IDS = [[3, 14, 15, 92, 65, 35]]


def test_a_sharded_base_is_kept_in_the_servers_dtype_however_slow_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "_fastest", lambda served: torch.float32)
    assert training_dtype("auto", torch.bfloat16) == torch.float32
    assert training_dtype("auto", torch.bfloat16, sharded=True) == torch.bfloat16
    assert training_dtype("fp32", torch.float32, sharded=True) == torch.float32


def test_a_sharded_base_in_another_dtype_is_refused_with_what_to_set() -> None:
    assert training_dtype("fp32", torch.bfloat16) == torch.float32
    with pytest.raises(BadInput, match=r"dtype is fp32 .* in bfloat16.*false"):
        training_dtype("fp32", torch.bfloat16, sharded=True)


@pytest.mark.parametrize("setting", ["auto", "bf16", "fp32"])
def test_a_sharded_base_under_a_server_in_float16_is_refused_since_its_gradients_would_vanish(
    setting: str,
) -> None:
    assert training_dtype("auto", torch.float16) == torch.float32
    with pytest.raises(
        BadInput, match=r'set engine\.dtype to "bfloat16", or trainer\.shard_base to'
    ):
        training_dtype(setting, torch.float16, sharded=True)


def test_a_gpu_has_layers_of_its_own_where_the_base_is_narrow() -> None:
    gpu, cpu = torch.device("cuda:0"), torch.device("cpu")
    assert policy.layers_for(gpu, torch.bfloat16) is fuse
    assert policy.layers_for(gpu, torch.float32) is keep_less
    assert policy.layers_for(cpu, torch.bfloat16) is keep_less


def test_in_float32_a_policy_scores_as_a_float32_copy_of_it_and_holds_one_layer_at_a_time(
    tiny_model: Path, adapter: Path
) -> None:
    narrow = load(tiny_model, adapter)
    causal: Any = narrow.model.get_base_model()  # type: ignore[operator]
    layers = causal.model.layers
    during = []
    for layer in layers:
        layer.mlp.register_forward_hook(
            lambda *_: during.append([dtypes(other) for other in layers])
        )
    with narrow.converted(torch.bfloat16):
        before = {name: p.data.clone() for name, p in narrow.model.named_parameters()}
        with narrow.converted(torch.float32):
            copy = _score(narrow, IDS)
        during.clear()
        with narrow.in_float32():
            found = _score(narrow, IDS)
        assert found[0] == pytest.approx(copy[0], rel=1e-6)
        layers[0].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
        with narrow.in_float32(), pytest.raises(ZeroDivisionError):
            _score(narrow, IDS)
        after = dict(narrow.model.named_parameters())
        assert all(p.dtype == torch.bfloat16 for p in after.values())
        assert all(torch.equal(values, after[name]) for name, values in before.items())
    wide, still = {torch.float32}, {torch.bfloat16}
    assert during == [[wide, still], [still, wide]]
    whole = 4 * narrow.count_parameters()[1]
    assert narrow.float32_bytes < whole


def dtypes(module: nn.Module) -> set[torch.dtype]:
    return {p.dtype for p in module.parameters()}


def test_a_core_each_has_a_micro_batch_where_the_layers_keep_nothing_of_a_pass(
    tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    known = load(tiny_model, adapter)
    assert known.shares_rows
    assert known.at_once == 3
    cpu = torch.device("cpu")
    assert Policy(known.model, cpu, shares_rows=False).at_once == 1  # layers nobody has read
    assert Policy(known.model, cpu, shares_rows=True, is_sharded=True).at_once == 1
    assert Policy(known.model, torch.device("cuda:0"), shares_rows=True).at_once == 1
    two_kinds = Policy(peft_model("gemma3"), cpu, shares_rows=True)  # of rotary frequencies
    assert two_kinds.at_once == 3
    of_two: Any = two_kinds.model.get_base_model().model.rotary_emb  # type: ignore[operator]
    of_two.rope_type["full_attention"] = "dynamic"
    assert Policy(two_kinds.model, cpu, shares_rows=True).at_once == 1
    rotary: Any = known.model.get_base_model().model.rotary_emb  # type: ignore[operator]
    rotary.rope_type = "longrope"  # whose frequencies follow the length of what is scored
    assert Policy(known.model, cpu, shares_rows=True).at_once == 1


@pytest.mark.parametrize("multiplies", [True, False])
def test_in_passes_onednn_multiplies_float32_where_attention_is_written_out(
    multiplies: bool, tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prefix, "_multiplies_bf16", lambda: multiplies)
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    as_ever = products.fp32_precision
    with load(tiny_model, adapter).in_passes():
        assert products.fp32_precision == ("bf16" if multiplies else as_ever)
    with load(tiny_model, adapter, torch.float32).in_passes():
        assert products.fp32_precision == as_ever
    assert products.fp32_precision == as_ever


def load(model: Path, adapter: Path, dtype: torch.dtype = torch.bfloat16) -> Policy:
    return load_policy(model, read_adapter(adapter), dtype, gradient_checkpointing=False)
