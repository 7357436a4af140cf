"""The chunked logprobs and their gradient against log_softmax over all the logits."""

from __future__ import annotations

import pytest
import torch

from trainer.scoring import logprobs as module
from trainer.scoring.logprobs import token_logprobs

N, HIDDEN, VOCABULARY = 11, 8, 23


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator).to(dtype)
    return hidden, weight, torch.randint(VOCABULARY, (N,), generator=generator)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("chunk_elements", [VOCABULARY, 4 * VOCABULARY, 10**6])
@pytest.mark.parametrize("block_elements", [VOCABULARY, 3 * VOCABULARY, 1 << 20])
def test_values_entropy_and_gradient_equal_the_plain_computation(
    temperature: float, chunk_elements: int, block_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk_elements)
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", block_elements)
    hidden, weight, targets = tensors()
    upstream = torch.linspace(-1, 2, N)

    logprobs, entropy = token_logprobs(hidden, weight, targets, temperature)
    (gradient,) = torch.autograd.grad((logprobs * upstream).sum(), hidden)

    all_logprobs = torch.log_softmax((hidden @ weight.T).float() / temperature, -1)
    plain = all_logprobs.gather(-1, targets[:, None]).squeeze(-1)
    (plain_gradient,) = torch.autograd.grad((plain * upstream).sum(), hidden)
    plain_entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)

    assert torch.allclose(logprobs, plain, atol=1e-6)
    assert torch.allclose(entropy, plain_entropy, atol=1e-5)
    assert torch.allclose(gradient, plain_gradient, atol=1e-5)


def test_logits_of_a_narrow_model_are_brought_to_float32_before_the_softmax() -> None:
    hidden, weight, targets = tensors(torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, weight, targets, 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    plain = torch.log_softmax((hidden @ weight.T).float(), -1).gather(-1, targets[:, None])
    assert torch.allclose(logprobs, plain.squeeze(-1), atol=1e-6)


def test_a_certain_token_has_no_entropy_and_no_nan() -> None:
    hidden = torch.tensor([[1000.0]])
    weight = torch.tensor([[1.0], [-1.0], [0.0]])
    logprobs, entropy = token_logprobs(hidden, weight, torch.tensor([0]), 1.0)
    assert logprobs.item() == 0.0
    assert entropy.item() == 0.0
