"""The plugin's pieces, and the patch for vLLM, give what vLLM's own functions give on a CPU; the
plugin stays away elsewhere."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import multiprocessing
import shutil
import socket
import subprocess
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.util import register_after_fork
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from rollout.engine import vllm_plugin
from scripts.base.checkout import ROOT

pytestmark = pytest.mark.trl

PATCH = ROOT / "docs/upstream/vllm-cpu-lora.patch"

RANK, IN, OUT = 16, 64, 96
SLICES = (96, 32, 32)
TOKENS = 23

BATCHES = {
    "one adapter": [0] * TOKENS,
    "two adapters": [0] * 10 + [1] * 13,
    "two adapters by turns": [i // 3 % 2 for i in range(TOKENS)],
}
DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
)


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def adapters(seed: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return (random(seed, 2, 1, rows, columns) / math.sqrt(columns)).to(dtype)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM's own functions by class and name, in place before and after the test."""
    found = {}
    for owner, name, _ in vllm_plugin._pieces():
        found[f"{owner.__name__}.{name}"] = theirs = getattr(owner, name)
        of_its_own = owner.__dict__.get(name, theirs)
        monkeypatch.setattr(owner, name, of_its_own)  # puts it back after the test
    monkeypatch.delenv(vllm_plugin.FLAG, raising=False)
    return found


# --- the start ------------------------------------------------------------------------------------


def test_a_forked_process_has_none_of_the_servers_sockets_and_pipes_stay() -> None:
    def count(answer: Connection) -> None:
        files = Path("/proc/self/fd").iterdir()
        answer.send(sum(f.is_socket() for f in files if int(f.name) > 2))

    here, there = multiprocessing.Pipe(duplex=False)
    with socket.create_server(("127.0.0.1", 0)), here, there:
        forked = multiprocessing.get_context("fork").Process(target=count, args=(there,))
        register_after_fork(forked, vllm_plugin._leave_what_is_the_api_servers)
        forked.start()
        assert here.poll(60)
        assert here.recv() == 0
        forked.join()


# --- LoRA -----------------------------------------------------------------------------------------


def layer(slices: tuple[int, ...], dtype: torch.dtype) -> Any:
    """What a LoRA layer's weights are made from."""
    config = SimpleNamespace(max_lora_rank=RANK, fully_sharded_loras=False, lora_dtype=dtype)
    sizes = {"n_slices": len(slices), "output_slices": slices, "input_size": IN}
    return SimpleNamespace(**sizes, tp_size=1, device="cpu", config=config)


def with_weights(make: Any, dtype: torch.dtype) -> Any:
    """A merged layer of two adapters, the weights written slice by slice as vLLM loads them."""
    made = layer(SLICES, dtype)
    make(made, 2, made.config)
    for i, out in enumerate(SLICES):
        for slot in range(2):
            made.lora_a_stacked[i][slot, 0, :, :].copy_(adapters(i, RANK, IN, dtype)[slot, 0])
            made.lora_b_stacked[i][slot, 0, :, :].copy_(adapters(9 + i, out, RANK, dtype)[slot, 0])
    return made


def applied(slots: list[int], made: Any, dtype: torch.dtype) -> torch.Tensor:
    """The layer's output, all ones without LoRA, after the products of vLLM as it is just now."""
    from vllm.lora.layers import LoRAMapping
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    wrapper = PunicaWrapperCPU(64, 8, "cpu")
    ids = tuple(slot + 1 for slot in slots)  # id 0 is "no adapter"
    mapping = LoRAMapping(index_mapping=ids, prompt_mapping=ids, is_prefill=True)
    wrapper.update_metadata(mapping, [1, 2], 2, 1000)
    y = torch.ones(len(slots), sum(SLICES), dtype=dtype)
    x = random(3, len(slots), IN, dtype=dtype)
    stacked = made.lora_a_stacked, made.lora_b_stacked
    wrapper.add_lora_linear(y, x, *stacked, 1.0, SLICES)
    return y


@pytest.mark.parametrize("slots", BATCHES.values(), ids=BATCHES.keys())
@DTYPES
def test_lora_gives_what_the_original_gives(
    slots: list[int], dtype: torch.dtype, tolerance: float, own: dict[str, Any]
) -> None:
    from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA as Merged

    make = own["MergedColumnParallelLinearWithLoRA.create_lora_weights"]
    theirs = applied(slots, with_weights(make, dtype), dtype)
    vllm_plugin.register()
    made = with_weights(Merged.create_lora_weights, dtype)
    ours = applied(slots, made, dtype)
    assert made.lora_a_stacked[0].grpo_whole[0].shape == (2, 1, len(SLICES) * RANK, IN)
    assert torch.allclose(theirs.float(), ours.float(), rtol=tolerance, atol=tolerance)
    assert not torch.equal(ours, torch.ones_like(ours))


def test_a_layer_whose_slices_are_apart_is_left_to_vllm(own: dict[str, Any]) -> None:
    made = with_weights(
        own["MergedColumnParallelLinearWithLoRA.create_lora_weights"], torch.float32
    )
    theirs = applied([0] * TOKENS, made, torch.float32)
    vllm_plugin.register()
    assert torch.equal(applied([0] * TOKENS, made, torch.float32), theirs)


def test_a_token_without_an_adapter_gets_none_in_a_mixed_batch() -> None:
    from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA as Merged

    vllm_plugin.register()
    slots = [-1] * 5 + [0] * 9 + [-1] * 4
    out = applied(slots, with_weights(Merged.create_lora_weights, torch.float32), torch.float32)
    alone = torch.tensor([slot < 0 for slot in slots])
    assert torch.equal(out[alone], torch.ones_like(out[alone]))
    assert not torch.equal(out[~alone], torch.ones_like(out[~alone]))


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [3, 256, 1000])
def test_ids_are_as_frequent_as_their_weights(vocabulary: int) -> None:
    weights = random(5, vocabulary).exp()
    weights[1] = 0.0
    grid = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    ids = vllm_plugin.by_inversion(weights.expand(len(grid), -1), grid)
    counts = torch.bincount(ids, minlength=vocabulary)
    expected = weights / weights.sum() * len(grid)
    assert (counts - expected).abs().max() <= 2  # an even grid, so but for its two ends
    assert counts[1] == 0


@pytest.mark.parametrize("uniform", [0.0, 0.25, 1 - 2**-53])
@pytest.mark.parametrize("only", [0, 255, 256, 700, 999])
def test_an_id_without_weight_is_never_chosen(uniform: float, only: int) -> None:
    weights = torch.zeros(1, 1000)
    weights[0, only] = 1e-6
    ids = vllm_plugin.by_inversion(weights, torch.tensor([uniform], dtype=torch.float64))
    assert ids.tolist() == [only]


def sampler(mode: str = "processed_logprobs") -> Any:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    return TopKTopPSampler(mode)  # type: ignore[arg-type]


def test_logprobs_are_the_originals_and_a_seed_repeats_its_ids() -> None:
    logits = random(7, 4, 1000) * 3
    _, theirs = sampler().forward_cpu(logits.clone(), {}, None, None)
    vllm_plugin.register()

    def drawn(seed: int) -> tuple[list[int], torch.Tensor]:
        generators = {row: torch.Generator().manual_seed(seed + row) for row in range(4)}
        ids, logprobs = sampler().forward_cpu(logits.clone(), generators, None, None)
        return ids.tolist(), logprobs

    ids, logprobs = drawn(0)
    assert torch.equal(logprobs, theirs)
    assert drawn(0)[0] == ids
    assert len({tuple(drawn(10 * seed)[0]) for seed in range(20)}) > 10


def test_top_k_leaves_only_its_ids() -> None:
    vllm_plugin.register()
    logits = random(8, 1, 1000)
    best = set(logits.topk(3).indices[0].tolist())
    k = torch.tensor([3])
    found = {sampler().forward_cpu(logits.clone(), {}, k, None)[0].item() for _ in range(200)}
    assert found == best


def test_raw_logprobs_are_not_the_samplers() -> None:
    vllm_plugin.register()
    assert sampler("raw_logprobs").forward_cpu(random(1, 2, 300), {}, None, None)[1] is None


# --- norms ----------------------------------------------------------------------------------------


def norm(dtype: torch.dtype, width: int) -> Any:
    weight = torch.nn.Parameter(random(1, width, dtype=dtype))
    values = {"has_weight": True, "pass_weight": True, "pass_weight_add": True}
    return SimpleNamespace(
        **values, weight=weight, variance_epsilon=1e-5, variance_size_override=None
    )


@DTYPES
@pytest.mark.parametrize("width", [576, 50], ids=["vectors", "an odd width"])
def test_norms_give_what_the_original_gives(
    dtype: torch.dtype, tolerance: float, width: int, own: dict[str, Any]
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm

    vllm_plugin.register()
    x, residual = random(2, 7, width, dtype=dtype), random(3, 7, width, dtype=dtype)
    with set_current_vllm_config(VllmConfig()):
        for more in ((), (residual,)):
            theirs, ours = (
                f(norm(dtype, width), x.clone(), *(m.clone() for m in more))
                for f in (own["RMSNorm.forward_native"], RMSNorm.forward_native)
            )
            for a, b in zip(theirs if more else (theirs,), ours if more else (ours,), strict=True):
                assert torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance)


# --- the patch for vLLM ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """vLLM's module as the patch for it would leave it."""
    from vllm.lora.ops.torch_ops import lora_ops

    root = tmp_path_factory.mktemp("vllm")
    file = root / "vllm/lora/ops/torch_ops/lora_ops.py"
    file.parent.mkdir(parents=True)
    shutil.copy(str(lora_ops.__file__), file)
    subprocess.run(["git", "apply", str(PATCH)], cwd=root, check=True)
    spec = importlib.util.spec_from_file_location("patched_lora_ops", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(slots: list[int], patched: ModuleType) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(vLLM's, the patched) result of a shrink and of an expand on the same inputs."""
    from vllm.lora.ops import torch_ops
    from vllm.lora.punica_wrapper.utils import compute_meta

    *meta, _ = compute_meta(torch.tensor(slots))
    x, inner = random(3, len(slots), IN), random(4, len(slots), RANK)
    shrunk, expanded = [], []
    for module in (torch_ops, patched):
        y, out = torch.zeros(len(slots), RANK), torch.ones(len(slots), OUT + 8)
        module.sgmv_shrink(x, adapters(1, RANK, IN, torch.float32), y, *meta, 2.0)
        weights = adapters(2, OUT, RANK, torch.float32)
        module.sgmv_expand_slice(inner, weights, out, *meta, 4, OUT, add_inputs=True)
        shrunk.append(y)
        expanded.append(out)
    return [(shrunk[0], shrunk[1]), (expanded[0], expanded[1])]


@pytest.mark.parametrize("slots", BATCHES.values(), ids=BATCHES.keys())
def test_the_patch_for_vllm_gives_what_the_original_gives(
    slots: list[int], patched: ModuleType
) -> None:
    for theirs, changed in both(slots, patched):
        assert torch.allclose(theirs, changed, rtol=1e-6, atol=1e-6)
        assert changed.abs().sum() > 0


def test_with_the_patch_a_token_without_an_adapter_gets_none(patched: ModuleType) -> None:
    slots = [-1] * 5 + [0] * 9 + [-1] * 4
    alone = torch.tensor([slot < 0 for slot in slots])
    _, (_, out) = both(slots, patched)
    assert torch.equal(out[alone], torch.ones(9, OUT + 8))
    assert not torch.equal(out[~alone], torch.ones(9, OUT + 8))


# --- the prefix cache -----------------------------------------------------------------------------


BLOCK = 32
PROMPT = [*range(100, 140)]  # 8 ids into its second block


class Cache:
    """vLLM's manager of a prefix cache, without a model: what requests would read, and which blocks
    are copied for them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, blocks: int = 64, kinds: Sequence[str] = ("full",)
    ) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            SlidingWindowSpec,
        )

        monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"none", raising=False)
        shape: dict[str, Any] = {
            "block_size": BLOCK,
            "num_kv_heads": 1,
            "head_size": 64,
            "dtype": torch.float32,
        }
        made: dict[str, Any] = {
            "full": FullAttentionSpec(**shape),
            "window": SlidingWindowSpec(**shape, sliding_window=256),
        }
        groups = [KVCacheGroupSpec([kind], made[kind]) for kind in kinds]
        self.manager: Any = KVCacheManager(
            KVCacheConfig(blocks, [], groups),
            max_model_len=1024,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_caching=bool(groups),
        )
        self.hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
        self.n = 0

    def request(self, prompt: list[int], adapter: str = "v0", salt: str | None = None) -> Any:
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self.n += 1
        return Request(
            f"request {self.n}",
            prompt,
            SamplingParams(max_tokens=99),
            None,
            lora_request=LoRARequest(adapter, 1, f"/{adapter}"),
            cache_salt=salt,
            block_hasher=self.hasher,
        )

    def begin(self, request: Any, upto: int | None = None) -> int:
        """Have its prompt read, up to a position if one is given; how many ids were."""
        known: int
        found, known, _ = self.manager.get_computed_blocks(request)
        end = request.num_prompt_tokens if upto is None else upto
        self.allocate(request, end - known, known, found)
        request.num_computed_tokens = end
        return end - known

    def allocate(self, request: Any, n: int, known: int = 0, found: Any = None) -> None:
        assert self.manager.allocate_slots(request, n, known, found) is not None

    def blocks_of(self, request: Any) -> list[int]:
        found: list[int] = self.manager.get_block_ids(request.request_id)[0]
        return found

    def copies(self) -> list[tuple[int, int]]:
        """The blocks to be copied since the last call, and where to."""
        found, _ = self.manager.take_kv_cache_block_copies()
        return [(c.src_block_id, c.dst_block_id) for c in found]

    def end(self, request: Any, reply: list[int]) -> None:
        """Sample a reply, whose last id is never computed."""
        for token in reply[:-1]:
            request.append_output_token_ids(token)
            self.allocate(request, 1)
            request.num_computed_tokens += 1
        request.append_output_token_ids(reply[-1])
        self.manager.free(request)

    def read(self, prompt: list[int], reply: list[int], **of_request: Any) -> int:
        """Play a request to its end; how many ids of the prompt it had to read."""
        request = self.request(prompt, **of_request)
        n = self.begin(request)
        self.end(request, reply)
        return n


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    vllm_plugin.register()
    return Cache(monkeypatch)


NEXT = [*PROMPT, 200, 201, 7]
"""The prompt of a turn after one that replied 200, 201."""


@pytest.mark.parametrize("length", range(1, BLOCK + 2))
def test_the_next_turn_of_a_conversation_reads_only_what_is_new(cache: Cache, length: int) -> None:
    """And the id that was sampled last, which no turn has computed."""
    conversation, reply = PROMPT, [*range(200, 200 + length)]
    assert cache.read(conversation, reply) == len(PROMPT)
    for _ in range(3):
        conversation = [*conversation, *reply, 7, 8, 9]
        assert cache.read(conversation, reply) == 4


def test_vllm_itself_reads_what_its_last_block_held_again(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Cache(monkeypatch)
    theirs.read(PROMPT, [200, 201])
    assert theirs.read(NEXT, [5]) == len(NEXT) - BLOCK


def test_a_request_that_goes_on_has_the_block_itself(cache: Cache) -> None:
    first, second = cache.request(PROMPT), cache.request(NEXT)
    cache.begin(first)
    blocks = cache.blocks_of(first)
    cache.end(first, [200, 201])
    assert cache.begin(second) == 2
    assert cache.blocks_of(second) == blocks
    assert cache.copies() == []


def test_a_second_one_reads_the_block_again_and_both_go_on(cache: Cache) -> None:
    cache.read(PROMPT, [200, 201])
    one, other = cache.request(NEXT), cache.request([*NEXT, 8])
    assert [cache.begin(one), cache.begin(other)] == [2, len(NEXT) + 1 - BLOCK]
    assert cache.blocks_of(one)[0] == cache.blocks_of(other)[0]
    assert cache.blocks_of(one)[1] != cache.blocks_of(other)[1]
    cache.end(one, [5, 6])
    cache.end(other, [5, 6])
    assert cache.read([*NEXT, 5, 6, 7], [5]) == 2
    assert cache.read([*NEXT, 8, 5, 6, 7], [5]) == 2


def test_a_block_that_another_has_too_is_copied(cache: Cache) -> None:
    cache.read(PROMPT, [200, 201])
    one, other = cache.request(NEXT), cache.request([*NEXT, 8])
    found = [cache.manager.get_computed_blocks(request) for request in (one, other)]
    for request, (blocks, known, _) in zip((one, other), found, strict=True):
        cache.allocate(request, 2, known, blocks)
    first, second = (cache.blocks_of(request)[1] for request in (one, other))
    assert cache.copies() == [(first, second)]


def test_equal_turns_are_gone_on_from_once_each(cache: Cache) -> None:
    for _ in range(2):
        cache.read(PROMPT, [200, 201])
    assert [cache.read(NEXT, [5]) for _ in range(2)] == [2, 2]


def test_a_last_block_is_found_as_a_whole_or_not_at_all(cache: Cache) -> None:
    cache.read(PROMPT, [200, 201])
    assert cache.read([*PROMPT, 199, 201, 7], [5]) == len(NEXT) - BLOCK


@pytest.mark.parametrize("short", [[1, 2, 3], [*range(BLOCK)]])
def test_a_prompt_shorter_than_a_block_is_found_too(cache: Cache, short: list[int]) -> None:
    cache.read(short, [200, 201])
    assert cache.read([*short, 200, 201], [5]) == 1


@pytest.mark.parametrize("other", [{"adapter": "v1"}, {"salt": "another user's"}])
@pytest.mark.parametrize("prompt", [[1, 2, 3], PROMPT])
def test_another_adapter_or_another_salt_has_none_of_it(
    cache: Cache, prompt: list[int], other: dict[str, str]
) -> None:
    cache.read(prompt, [200, 201])
    going_on = [*prompt, 200, 201, 7]
    assert cache.read(going_on, [5], **other) == len(going_on)
    assert cache.read(going_on, [5]) == 2


@pytest.mark.parametrize("computed", [3, BLOCK, BLOCK + 1, 100])
def test_a_request_that_ends_early_leaves_what_it_has_computed(cache: Cache, computed: int) -> None:
    prompt = [*range(300, 410)]
    begun = cache.request(prompt)
    cache.begin(begun, upto=computed)
    cache.manager.free(begun)
    assert cache.read(prompt, [5]) == len(prompt) - computed


def test_ids_of_a_step_that_is_not_over_are_not_counted(cache: Cache) -> None:
    """A scheduler that is a step ahead counts an id as computed that nobody knows yet."""
    ahead = cache.request(PROMPT)
    cache.begin(ahead)
    ahead.append_output_token_ids(200)
    cache.allocate(ahead, 1)
    ahead.num_computed_tokens += 1
    cache.manager.free(ahead)
    assert cache.read([*PROMPT, 200, 7], [5]) == 2


def test_a_block_that_others_needed_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_plugin.register()
    small = Cache(monkeypatch, blocks=5)  # one of which is vLLM's own
    small.read(PROMPT, [200, 201])
    small.read([*range(1000, 1000 + 3 * BLOCK)], [5])  # takes the last one, leaves the first
    assert small.read(NEXT, [5]) == len(NEXT) - BLOCK


def test_an_emptied_cache_has_none(cache: Cache) -> None:
    cache.read([1, 2, 3], [200, 201])
    assert cache.manager.reset_prefix_cache()
    assert cache.read([1, 2, 3, 200, 201, 7], [5]) == 6


def test_a_prompt_that_needs_the_whole_cache_is_not_kept_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a block that is copied vLLM wants a free one beside those that the prompt needs."""
    vllm_plugin.register()
    full = Cache(monkeypatch, blocks=4)
    conversation = [*range(300, 370)]
    full.read(conversation, [200, 201])
    assert full.read([*conversation, 200, 201, 7], [5]) == 73 - 2 * BLOCK


def test_every_block_is_free_again(cache: Cache) -> None:
    before = cache.manager.block_pool.get_num_free_blocks()
    conversation = PROMPT
    for i in range(20):
        cache.read(conversation, [5, 6, 7])
        conversation = [*conversation, 5, 6, 7, i]
    assert cache.manager.block_pool.get_num_free_blocks() == before


@pytest.mark.parametrize("kinds", [[], ["window"], ["full", "window"]])
def test_a_model_whose_layers_do_not_all_see_everything_is_left_to_vllm(
    kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads() -> list[int]:
        cache = Cache(monkeypatch, kinds=kinds)
        return [cache.read(PROMPT, [200, 201]), cache.read(NEXT, [5])]

    theirs = reads()
    vllm_plugin.register()
    assert reads() == theirs


# --- when it takes vLLM's place -------------------------------------------------------------------


def ours() -> list[bool]:
    """Of each piece, whether vLLM has the plugin's."""
    return [getattr(o, n).__module__ == vllm_plugin.__name__ for o, n, _ in vllm_plugin._pieces()]


def test_it_takes_the_place_of_every_piece_once() -> None:
    assert not any(ours())
    vllm_plugin.register()
    first = [getattr(o, n) for o, n, _ in vllm_plugin._pieces()]
    vllm_plugin.register()  # vLLM may call it twice
    assert all(ours())
    assert [getattr(o, n) for o, n, _ in vllm_plugin._pieces()] == first


def test_a_flag_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.FLAG, "0")
    vllm_plugin.register()
    assert not any(ours())


@pytest.mark.parametrize("version", ["0.33.0", None])
def test_a_version_or_a_build_that_it_does_not_know_is_left_as_it_is(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", installed)
        vllm_plugin.register()
    assert not any(ours())


def test_a_piece_that_takes_other_arguments_leaves_all_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.model_executor.layers.layernorm import RMSNorm

    monkeypatch.setattr(RMSNorm, "forward_native", lambda self, x, residual, limit: x)
    vllm_plugin.register()
    assert not any(ours())


def test_vllm_finds_it_under_its_entry_point() -> None:
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [e.value for e in found if e.name == "grpo-cpu-patches"] == [
        "rollout.engine.vllm_plugin:register"
    ]
