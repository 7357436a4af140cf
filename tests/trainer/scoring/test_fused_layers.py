"""A GPU's layers, against peft's and transformers' in float32. Without a GPU their products run on
the CPU; norms and the gated activation are liger-kernel's, which has no form for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.fieldkit.peft_models import peft_model
from trainer.scoring.fused_layers import _product_float32, fuse
from trainer.scoring.lean_layers import keep_less

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def without_liger_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr("trainer.scoring.fused_layers.find_spec", lambda _: None)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], LINEAR])
def test_outputs_and_gradients_are_those_of_the_served_adapter_as_nearly_as_peft_s_are(
    targets: list[str], architecture: str
) -> None:
    served = made(targets, architecture).bfloat16()  # as a server rounds it
    exact, exact_served = passes(made(targets, architecture).float()), passes(served.float())
    lean = passes(made(targets, architecture, keep_less))
    fused = passes(made(targets, architecture, fuse))
    for right, plain, served_right, ours in zip(exact, lean, exact_served, fused, strict=True):
        assert 0 < apart(ours, served_right) < 2 * apart(plain, right)
        assert apart(plain, right) < 0.03


@pytest.mark.parametrize("architecture", ["gemma3", "gpt2", "moe"])
def test_so_are_those_of_a_model_of_which_only_lora_is_replaced(architecture: str) -> None:
    targets = {"gpt2": ["c_attn"]}.get(architecture, ["q_proj", "v_proj", "o_proj"])
    served = passes(made(targets, architecture).bfloat16().float())
    exact = passes(made(targets, architecture).float())
    plain = passes(made(targets, architecture))
    fused = passes(made(targets, architecture, partial(fuse, only_lora=True)))
    for right, peft_s, served_right, ours in zip(exact, plain, served, fused, strict=True):
        assert 0 < apart(ours, served_right) < 2 * apart(peft_s, right)


def test_a_layer_s_output_may_be_changed_in_place_as_olmo_clamps_it() -> None:
    config = transformers.OlmoConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        clip_qkv=0.5,
    )
    make: Any = transformers.AutoModelForCausalLM.from_config
    model = made(["q_proj", "v_proj"], "", partial(fuse, only_lora=True), base=make(config))
    assert passes(model)[1].norm() > 0


def test_a_layer_whose_input_has_no_gradient_is_trained_alike() -> None:
    found = []
    for change in (keep_less, fuse):
        model = made(["q_proj"], "llama", change)
        layer = next(m for m in model.modules() if hasattr(m, "lora_A"))
        x = torch.linspace(-1, 1, 96, dtype=torch.bfloat16, device=DEVICE).view(2, 3, 16)
        layer(x).sum().backward()
        found.append([layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad])
    for lean, fused in zip(*found, strict=True):
        assert lean.norm() > 0
        assert apart(fused, lean) < 0.02


def test_a_layer_adds_its_bias_and_scales_its_lora() -> None:
    layer = next(m for m in made(["q_proj"], "qwen2").modules() if hasattr(m, "lora_A"))
    base, lora_a, lora_b = layer.base_layer, layer.lora_A["default"], layer.lora_B["default"]
    with torch.no_grad():
        base.weight.zero_()
        base.bias.fill_(8)
        lora_a.weight.fill_(1)
        lora_b.weight.fill_(1)
        layer.scaling["default"] = 0.5
        x = torch.ones(1, 1, 16, dtype=torch.bfloat16, device=DEVICE)
        plain = layer(x)
        fuse(layer)
        assert torch.equal(layer(x), plain)
        assert layer(x).unique() == 8 + 16 * lora_a.weight.shape[0] / 2


def test_a_sum_over_tokens_is_not_rounded_to_16_bits() -> None:
    ones = torch.ones(257, 16, dtype=torch.bfloat16, device=DEVICE)
    assert (_product_float32(ones.T, ones) == 257).all()
    assert ((ones.T @ ones).float() != 257).all(), "bfloat16 has 256 and 258"


def test_what_is_computed_again_has_the_same_bits() -> None:
    model = made(LINEAR, "llama", fuse)
    once = passes(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert all(torch.equal(a, b) for a, b in zip(once, passes(model), strict=True))


def test_without_its_adapter_a_model_answers_as_its_base_does() -> None:
    model = made(LINEAR, "llama")
    ids = torch.arange(12, device=DEVICE)[None]
    with torch.no_grad(), model.disable_adapter():
        plain = model(input_ids=ids).logits
        fuse(model)
        assert apart(model(input_ids=ids).logits, plain) < (0.02 if DEVICE == "cuda" else 1e-9)
    assert apart(model(input_ids=ids).logits, plain) > 0.1


def made(
    targets: list[str],
    architecture: str,
    change: Callable[[Any], None] | None = None,
    base: Any = None,
) -> Any:
    """A model in training with a base in bfloat16 and a LoRA in float32. base: of no
    architecture's."""
    torch.manual_seed(0)
    model = peft_model(architecture, base, target_modules=targets).train()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if "lora_" in name else torch.bfloat16)
    if change is not None:
        change(model)
    return model.to(DEVICE)


def passes(model: nn.Module) -> list[Tensor]:
    """Logits, and the gradients of their weighted sum, in float32."""
    model.zero_grad()
    ids = torch.arange(12, device=DEVICE)[None]
    logits: Tensor = model(input_ids=ids).logits.float()
    weights = torch.linspace(-1, 1, logits.shape[-1], device=DEVICE)
    (logits * weights).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
    assert gradients
    return [logits.detach(), torch.cat([g.flatten() for g in gradients])]


def apart(left: Tensor, right: Tensor) -> float:
    """The distance of two tensors, as a part of the second one's length."""
    difference = (left.float() - right.float()).norm() / right.float().norm()
    return float(difference.detach())
