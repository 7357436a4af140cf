"""The layers that keep less for the backward pass, against those of peft and transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.fieldkit.peft_models import peft_model
from trainer.scoring.lean_layers import keep_less


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients_have_the_same_bits_and_less_is_kept(dtype: torch.dtype) -> None:
    model = peft_model("llama").train()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if "lora_" in name else dtype)
    plain, of_plain, much = passes(model)
    keep_less(model)
    lean, of_lean, less = passes(model)
    assert torch.equal(plain, lean)
    assert all(torch.equal(a, b) for a, b in zip(of_plain, of_lean, strict=True))
    assert less < much


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
