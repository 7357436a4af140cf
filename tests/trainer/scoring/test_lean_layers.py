"""The layers that keep less for the backward pass, against those of peft and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.fieldkit.peft_models import peft_model
from trainer.scoring.lean_layers import keep_less

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], LINEAR])
def test_outputs_and_gradients_have_the_same_bits_and_less_is_kept(
    targets: list[str], architecture: str, dtype: torch.dtype
) -> None:
    model = made(targets, architecture, dtype)
    plain, of_plain, much = passes(model)
    keep_less(model)
    lean, of_lean, less = passes(model)
    assert torch.equal(plain, lean)
    assert all(torch.equal(a, b) for a, b in zip(of_plain, of_lean, strict=True))
    assert less < much


@pytest.mark.parametrize("architecture", ["gemma3", "gpt2", "moe"])
def test_of_any_model_lora_alone_has_the_same_bits_and_keeps_less(architecture: str) -> None:
    targets = {"gpt2": ["c_attn"]}.get(architecture, ["q_proj", "v_proj", "o_proj"])
    model = made(targets, architecture, torch.bfloat16)
    plain, of_plain, much = passes(model)
    keep_less(model, only_lora=True)
    lean, of_lean, less = passes(model)
    assert torch.equal(plain, lean)
    assert all(torch.equal(a, b) for a, b in zip(of_plain, of_lean, strict=True))
    assert less < much


def test_what_is_computed_again_has_the_same_bits() -> None:
    model = made(LINEAR, "llama", torch.bfloat16)
    keep_less(model)
    once, of_once, much = passes(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again, of_again, less = passes(model)
    assert torch.equal(once, again)
    assert all(torch.equal(a, b) for a, b in zip(of_once, of_again, strict=True))
    assert less < much


def test_without_its_adapter_a_model_answers_as_its_base_does() -> None:
    model = made(LINEAR, "llama", torch.bfloat16)
    ids = torch.arange(12)[None]
    with torch.no_grad(), model.disable_adapter():
        plain = model(input_ids=ids).logits
        keep_less(model)
        assert torch.equal(model(input_ids=ids).logits, plain)
    assert not torch.equal(model(input_ids=ids).logits, plain)


def made(targets: list[str], architecture: str, dtype: torch.dtype) -> Any:
    """A model in training whose base has this dtype, and whose LoRA is in float32."""
    model = peft_model(architecture, target_modules=targets).train()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if "lora_" in name else dtype)
    return model


def passes(model: nn.Module) -> tuple[Tensor, list[Tensor], int]:
    """Logits, the gradients of their weighted sum, and the bytes that were kept for them."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits: Tensor = model(input_ids=torch.arange(12)[None]).logits
    (logits.float() * torch.linspace(-1, 1, logits.shape[-1])).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    return logits.detach(), gradients, sum(kept.values())
