"""Causal attention in bfloat16 on a CPU, written out as products of matrices.

PyTorch's own kernel took four tenths of a gradient on an EPYC, since its products come from a
library that is slow there; written out, attention takes half of its processor time, and its errors
are no larger (`tests/trainer/attention_price.py`). Its operations are many and short, so threads
that share them mostly wait for each other: it is for a thread with a micro-batch of its own
(`trainer.scoring.parallel`), with oneDNN's products of float32 (`trainer.scoring.onednn`).

Scores and their softmax are float32. Nothing of their size is kept for the backward pass, which
makes them again (as in FlashAttention, arXiv 2205.14135). Nothing here knows which sequences there
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""Queries at a time: what the scores hold is bounded, and a block skips the keys after it."""


def attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None = None
) -> Tensor:
    """softmax(query · keyᵀ · scaling) · value, where the queries are the last n of S positions.

    query (1, heads, n, d), key and value (1, key heads, S, d) → (1, heads, n, d). window: so many
    positions are seen, the query's own the last of them.
    """
    of_each_key_head = query[0].view(key.shape[1], -1, *query.shape[2:])
    apply: Any = _Attention.apply
    out: Tensor = apply(of_each_key_head, key[0], value[0], scaling, window)
    return out.flatten(0, 1)[None]


class _Attention(torch.autograd.Function):
    """K key heads, R queries' heads for each of them, n queries, S keys, d numbers a head.

    With P = softmax(A) by rows and O = P·V: dV = Pᵀ·dO, dP = dO·Vᵀ,
    dA = P ∘ (dP − the rows' sums of P ∘ dP), dQ = dA·K, dK = dAᵀ·Q.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query_KRnd: Tensor,
        key_KSd: Tensor,
        value_KSd: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        out = torch.empty_like(query_KRnd)
        for rows, seen in blocks(query_KRnd.shape[2], key_KSd.shape[1], window):
            query, key, value = query_KRnd[:, :, rows], key_KSd[:, seen], value_KSd[:, seen]
            weights = _weights(query, key, scaling, window).to(value.dtype)
            out[:, :, rows] = (weights @ value).view(query.shape)
        ctx.save_for_backward(query_KRnd, key_KSd, value_KSd)
        ctx.sees = scaling, window
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query_KRnd, key_KSd, value_KSd = ctx.saved_tensors
        scaling, window = ctx.sees
        of_query = torch.empty_like(query_KRnd)
        of_key, of_value = (torch.zeros(x.shape) for x in (key_KSd, value_KSd))
        for rows, seen in blocks(query_KRnd.shape[2], key_KSd.shape[1], window):
            query, key, value = query_KRnd[:, :, rows], key_KSd[:, seen], value_KSd[:, seen]
            weights = _weights(query, key, scaling, window)
            of_out = _folded(gradients[0][:, :, rows])
            of_weights = _exact(of_out, value)
            of_scores: Tensor = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_scores = of_scores.to(key.dtype)
            of_query[:, :, rows] = (of_scores @ key).view(query.shape)
            of_key[:, seen] += of_scores.mT @ _folded(query)
            of_value[:, seen] += weights.to(value.dtype).mT @ of_out
            del weights, of_weights, of_scores  # before the next block's
        of_query, of_key = of_query.mul_(scaling), of_key.mul_(scaling)
        return of_query, of_key.to(key_KSd.dtype), of_value.to(value_KSd.dtype), None, None


def blocks(n: int, of: int, window: int | None) -> Iterator[tuple[slice, slice]]:
    """The queries of each block, where n of them are the last of so many positions, and the keys
    that any of the block sees."""
    before = of - n
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        first = 0 if window is None else max(0, before + start + 1 - window)
        yield slice(start, end), slice(first, before + end)


def _weights(query_KRnd: Tensor, key_KSd: Tensor, scaling: float, window: int | None) -> Tensor:
    """P of a block, whose queries are the last positions of the keys: (K, R·n, S), float32."""
    n, of = query_KRnd.shape[2], key_KSd.shape[1]
    scores = _exact(_folded(query_KRnd), key_KSd).mul_(scaling)
    by_query = scores.view(len(scores), -1, n, of)
    by_query[..., -n:].add_(_later()[:n, :n])
    if window is not None and of > window:
        out_of_sight = of - window  # for the last query, and one fewer for each before it
        by_query[..., -out_of_sight:, :out_of_sight].add_(_earlier()[:out_of_sight, :out_of_sight])
    return torch.softmax(scores, dim=-1)


def _folded(x_KRnd: Tensor) -> Tensor:
    """(K, R·n, d): the heads of one key head under each other."""
    return x_KRnd.flatten(1, 2)


def _exact(a_Knd: Tensor, b_KSd: Tensor) -> Tensor:
    """a·bᵀ in float32, which bfloat16 would round to three digits."""
    return a_Knd.float() @ b_KSd.float().mT


@cache
def _later() -> Tensor:
    """What is added to a block's scores so that a position sees no later one."""
    return torch.full((BLOCK, BLOCK), float("-inf")).triu_(1)


@cache
def _earlier() -> Tensor:
    """What is added so that each of a block's last queries misses one position more than the one
    before it, the first of them one."""
    return torch.full((BLOCK, BLOCK), float("-inf")).tril_()
