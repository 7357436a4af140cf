"""Log-probabilities of chosen tokens from hidden states, without ever holding all the logits.

With a vocabulary of 50,000 to 150,000 the logits of a micro-batch outweigh everything else in
memory. The output layer is frozen, so a token's gradient with respect to its hidden state is known
as soon as its logits are: it is formed chunk by chunk in the forward pass and only scaled in the
backward pass. Not for a trained output layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.settings import CHUNK_ELEMENTS

_BLOCK_ELEMENTS = 1 << 20
"""Logits that are in float32 at a time on a CPU: 4 MB, so that the dozen elementwise passes over
them find them in the cores' caches."""


def token_logprobs(
    hidden_nh: Tensor, weight_vh: Tensor, targets_n: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """log softmax(W·h / T) at the target, and the entropy of that distribution, per token.

    Logits are computed in the model's dtype (as the server does), brought to float32, then divided
    by T. Returns (logprobs_n with gradient to hidden_nh, entropy_n without), both float32, nats.
    """
    apply: Any = _TokenLogprobs.apply
    logprobs_n, entropy_n = apply(hidden_nh, weight_vh, targets_n, temperature)
    return logprobs_n, entropy_n


class _TokenLogprobs(torch.autograd.Function):
    """d lp_i / d h_i = (W[y_i] − Σ_v p_v·W[v]) / T, kept from the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_nh: Tensor, weight_vh: Tensor, targets_n: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        wants_gradient = ctx.needs_input_grad[0]
        rows = max(1, CHUNK_ELEMENTS // weight_vh.shape[0])
        logprobs, entropies, slopes = [], [], []
        for hidden, targets in zip(
            torch.split(hidden_nh, rows), torch.split(targets_n, rows), strict=True
        ):
            logits = hidden @ weight_vh.T
            for block, wanted in zip(_blocks(logits), _blocks(targets, logits), strict=True):
                scores = block.float()
                if temperature != 1:
                    scores.div_(temperature)
                log_total = torch.logsumexp(scores, dim=-1)
                chosen = scores.gather(-1, wanted[:, None]).squeeze(-1)
                logprobs.append(chosen - log_total)
                probabilities = scores.sub_(log_total[:, None]).exp()  # scores now hold log p
                # Where p underflows to 0 its log p is still finite, so the product is a clean 0.
                entropies.append(-torch.linalg.vecdot(probabilities, scores))
                if wants_gradient:
                    one_hot_minus_p = probabilities.neg_()
                    one_hot_minus_p.scatter_add_(
                        -1, wanted[:, None], one_hot_minus_p.new_ones(len(wanted), 1)
                    )
                    block.copy_(one_hot_minus_p)  # rounded; nothing reads these logits any more
            if wants_gradient:
                slopes.append(logits @ weight_vh)
        if wants_gradient:
            ctx.save_for_backward(torch.cat(slopes))
        ctx.temperature = temperature
        entropy_n = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_n)
        return torch.cat(logprobs), entropy_n

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        (slope_nh,) = ctx.saved_tensors
        scale_n = gradients[0] / ctx.temperature
        return (scale_n[:, None] * slope_nh).to(slope_nh.dtype), None, None, None


def _blocks(rows: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """Views of a chunk's logits that a CPU's caches can hold, about equally long; on a GPU all of
    them. like: cut as these logits are."""
    logits = rows if like is None else like
    many = 1 if logits.is_cuda else -(-logits.numel() // _BLOCK_ELEMENTS)
    return torch.tensor_split(rows, max(1, min(many, len(rows))))
