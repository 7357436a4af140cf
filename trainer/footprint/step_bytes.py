"""The bytes that a training step holds, by a formula over the model's config.

Nothing is loaded or allocated here: a night is refused, and a budget is chosen, before a model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from fieldkit.gate.memory import GIB
from fieldkit.training.adapter import AdapterInfo, weight_bytes
from trainer.scoring.parallel import at_once
from trainer.scoring.shared_prefix import can_share, has_lean_layers, writes_out
from trainer.settings import CHUNK_ELEMENTS, TrainerSettings, cuda_devices

PROCESS_BYTES = GIB // 2  # interpreter and libraries: 0.42 to 0.47 GiB, measured
_STARTER_BYTES = GIB // 5  # torchrun's own process: 0.16 GiB, measured
# Float32 scores, probabilities and two temporaries on a GPU. A CPU has them of a block at a time.
_LOGIT_BUFFERS = 4 * 4 * CHUNK_ELEMENTS
_FLOAT32 = 4

# Weights, gradient, AdamW's two moments, reference and previous values of each LoRA parameter, all
# in float32.
_LORA_BYTES = 6 * _FLOAT32

# glibc's allocator keeps blocks that one micro-batch frees and that do not fit the next one's
# width. The factor is the peak of a step of 32 attempts over what its largest micro-batch saves for
# the backward pass, measured at 1,024 and at 4,096 tokens. With tcmalloc it was 1.0. PyTorch's own
# on a GPU keeps blocks too, but gives them back before it fails. On an H200 what was in use was
# 1.04 of what the formula says is saved (a 7B model, micro-batches of 3,647, 6,397 and 11,676
# positions); the rest is room for pieces that fit nowhere.
_ALLOCATOR = 1.5
_GPU_ALLOCATOR = 1.3

_IN_PLACE = 1.2
"""A layer that is computed again and its gradients, in the layer's activations: what the same steps
on the H200 held with checkpointing."""

_A_SCORE = 256 * (3 * _FLOAT32 + 2)
"""Attention that is written out holds for each head and key, of a block of 256 queries, scores,
probabilities and their gradient in float32, and one of them rounded. Counted as if a micro-batch
were one sequence."""

_COPIES = 2
"""`micro_batch.copies` of a position, for the forecast, which knows no bundle: of a night's
bundles the micro-batch with the most had 0.7 to 1.7."""

_NORMS_HEADS = ("gemma3", "gemma3_text", "olmo2", "olmo3", "qwen3", "qwen3_moe")
"""Models that norm every head of queries and keys."""
_FOUR_NORMS = ("gemma2", "gemma3", "gemma3_text")
"""Models with a norm before and after each half of a layer."""

_DEFAULT_TARGETS = ("q_proj", "v_proj")

_READS = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""LoRA targets that read what another one reads."""


def item_bytes_of(settings: TrainerSettings) -> int:
    """Bytes of one weight of the base as the trainer loads it on this machine; the larger size
    where it measures both dtypes."""
    if settings.dtype == "auto":
        return 2 if settings.serving_dtype == "bfloat16" and cuda_devices() else 4
    return 2 if settings.dtype == "bf16" else 4


def forecast(
    model_dir: Path,
    settings: TrainerSettings,
    item_bytes: int,
    adapter: AdapterInfo | None = None,
    *,
    longest_segment: int = 0,
    tcmalloc: bool = False,
) -> int:
    """Bytes that a step holds at most, on each device or on the host: base + LoRA + program +
    the larger of micro-batch and copy.

    base: parameters x `item_bytes`. LoRA: its parameters x `_LORA_BYTES`. program: interpreter,
    libraries and chunks of logits. micro-batch: its tokens x `activation_bytes`, and x `_ALLOCATOR`
    without tcmalloc, or x `_GPU_ALLOCATOR` on a GPU. It has `tokens_per_microbatch` tokens, and
    those that are computed in parallel count each, with their gradients; or it has those of a
    segment that is longer and is computed alone: longest_segment, of the longest one that a bundle
    can have; 0 for what is usual. copy: the base's in the server's dtype, where that is another
    one; the canary makes it after the last micro-batch. Its float32 copy is left out: it is made
    only where it fits. Without a GPU every process of the step holds all of it, and torchrun's own
    holds a program more. A sharded base counts whole there, because every process loads it whole.
    """
    on_gpu = bool(cuda_devices())
    fixed, per_token, per_copy = bytes_of_step(
        model_dir,
        settings,
        item_bytes,
        adapter,
        on_gpu=on_gpu,
        tcmalloc=tcmalloc,
        shards=settings.shards if on_gpu else 1,
    )
    at_a_time = in_parallel(model_dir, settings.world_size, on_gpu=on_gpu)
    held = max(at_a_time * settings.microbatch_tokens, longest_segment)
    copy = copy_bytes(model_dir, settings, item_bytes)
    one = fixed + max(held * (per_token + _COPIES * per_copy), copy)
    if on_gpu:
        return one
    return settings.world_size * one + (_STARTER_BYTES if settings.launched else 0)


def copy_bytes(model_dir: Path, settings: TrainerSettings, item_bytes: int) -> int:
    """Bytes of the copy of the base that `Policy.converted` makes for the canary. Two dtypes of one
    size do not meet: `check_dtype`."""
    served = 4 if settings.serving_dtype == "float32" else 2  # "auto" is never float32
    return 0 if served == item_bytes else weight_bytes(model_dir, served)


def bytes_of_step(
    model_dir: Path,
    settings: TrainerSettings,
    item_bytes: int,
    adapter: AdapterInfo | None,
    *,
    on_gpu: bool,
    tcmalloc: bool,
    shards: int = 1,
) -> tuple[int, int, int]:
    """Bytes of a step without a micro-batch, for each of a micro-batch's tokens, and for each
    position that is kept once more (`micro_batch.copies`)."""
    base = _base_bytes(model_dir, item_bytes, shards)
    lora = weight_bytes(adapter.path, _LORA_BYTES) if adapter else 0
    targets = adapter.target_modules if adapter else _DEFAULT_TARGETS
    written_out = writes_out(model_dir, item_bytes, on_gpu=on_gpu)
    saved = activation_bytes(
        model_dir,
        item_bytes,
        settings.gradient_checkpointing,
        targets=targets,
        written_out=written_out,
        on_gpu=on_gpu,
    )
    layers = 1 if settings.gradient_checkpointing else _layers(model_dir)
    heads = _width_of_key_heads(model_dir) if written_out else _width_of_heads(model_dir)
    copied = layers * 2 * heads * item_bytes if can_share(model_dir) else 0
    at_a_time = in_parallel(model_dir, settings.world_size, on_gpu=on_gpu)
    if adapter and at_a_time > 1:  # gradients that `parallel.in_order` holds
        lora += weight_bytes(adapter.path, _FLOAT32) * (at_a_time + 2)
    fixed = base + lora + PROCESS_BYTES + _LOGIT_BUFFERS
    scores = _heads(model_dir) * _A_SCORE if written_out else 0
    allocator = _GPU_ALLOCATOR if on_gpu else 1.0 if tcmalloc else _ALLOCATOR
    return fixed, int(allocator * saved) + scores, int(allocator * copied)


def in_parallel(model_dir: Path, processes: int = 1, *, on_gpu: bool) -> int:
    """Micro-batches that are computed at a time (`Policy.at_once`)."""
    return at_once(processes, on_gpu=on_gpu) if can_share(model_dir) else 1


def _layers(model_dir: Path) -> int:
    config = read_json(model_dir / "config.json")
    return _width(config, "num_hidden_layers", model_dir)


def _heads(model_dir: Path) -> int:
    return _width(read_json(model_dir / "config.json"), "num_attention_heads", model_dir)


def _width_of_heads(model_dir: Path) -> int:
    """Of all queries' heads together."""
    config, heads = read_json(model_dir / "config.json"), _heads(model_dir)
    hidden = _width(config, "hidden_size", model_dir)
    return heads * int(config.get("head_dim") or hidden // heads)


def _width_of_key_heads(model_dir: Path) -> int:
    """Of all keys' heads together, of which several queries' heads may share one."""
    heads = _heads(model_dir)
    of_keys = int(read_json(model_dir / "config.json").get("num_key_value_heads") or heads)
    return of_keys * _width_of_heads(model_dir) // heads


def _base_bytes(model_dir: Path, item_bytes: int, shards: int) -> int:
    """Bytes of the base on a device: what is outside its layers, a part of the layers, and two
    whole ones, the second of which is gathered while the first computes."""
    whole = weight_bytes(model_dir, item_bytes)
    if shards == 1:
        return whole
    config = read_json(model_dir / "config.json")
    hidden, vocabulary, layers = (
        _width(config, key, model_dir) for key in ("hidden_size", "vocab_size", "num_hidden_layers")
    )
    tables = 1 if config.get("tie_word_embeddings") else 2  # input embedding, output layer
    outside = tables * vocabulary * hidden * item_bytes
    inside = whole - outside
    return outside + inside // shards + 2 * inside // layers


def activation_bytes(
    model_dir: Path,
    item_bytes: int,
    checkpointing: bool,
    *,
    targets: Sequence[str] = _DEFAULT_TARGETS,
    written_out: bool = False,
    on_gpu: bool = False,
) -> int:
    """What one token of a micro-batch keeps until its backward pass.

    In a layer of a Llama-like model of which only LoRA is trained: the inputs of two norms;
    queries, keys and values (of each query's head, as they are repeated for it) and attention's
    output, and its sums per head in float32, or, where attention is written out, queries, keys and
    values as they are; two products of the MLP's width (gate and up); and the inputs of the LoRA
    targets, one for those that read the same. Of a model whose norms and MLPs are not
    `lean_layers`' it is more: SiLU of the gate, and float32 copies of what norms read. Models that
    norm heads, or have four norms in a layer, keep what these read too. LoRA's own r numbers are
    left out. Once for all layers of a kind: cosines and sines of the position. With checkpointing:
    one hidden state for each layer, and one layer's activations with their gradients, of which
    `fused_layers` on a GPU write most in place.
    """
    config = read_json(model_dir / "config.json")
    hidden, mlp, layers, heads = (
        _width(config, key, model_dir)
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    )
    lean, width = has_lean_layers(model_dir), _width_of_heads(model_dir)
    norms = (4 if config.get("model_type") in _FOUR_NORMS else 2) * hidden
    if config.get("model_type") in _NORMS_HEADS:
        norms += width + _width_of_key_heads(model_dir)
    cast = item_bytes if lean else _FLOAT32
    attention = 4 * width * item_bytes + heads * _FLOAT32
    if written_out:
        attention = (width + 2 * _width_of_key_heads(model_dir)) * item_bytes
    inputs = {target: _READS.get(target, target) for target in targets}
    widths = {"o_proj": width, "down_proj": mlp}
    lora = sum(widths.get(name, hidden) for name in set(inputs.values()))
    between = _of_experts(config, mlp, hidden) or (2 if lean else 3) * mlp
    layer = norms * cast + lora * item_bytes + attention + between * item_bytes
    kinds = len(set(config.get("layer_types") or ["full_attention"]))
    rotary = kinds * 2 * (width // heads) * item_bytes
    if not checkpointing:
        return layers * layer + rotary
    fused = on_gpu and lean and item_bytes < _FLOAT32
    again = _IN_PLACE if fused else 2.0
    return int(again * layer) + layers * hidden * item_bytes + rotary


def _of_experts(config: dict[str, Any], mlp: int, hidden: int) -> int:
    """Numbers that a layer of experts keeps for a token: of each expert that it goes to, what a
    gated MLP keeps, and its output, whose weight is computed; 0 for a model without."""
    if not (config.get("num_experts") or config.get("num_local_experts")):
        return 0
    each = config.get("moe_intermediate_size") or mlp
    shared = config.get("shared_expert_intermediate_size") or 0
    return int((3 * each + hidden) * (config.get("num_experts_per_tok") or 1) + 3 * shared)


def _width(config: dict[str, Any], key: str, model_dir: Path) -> int:
    return size_of(config, key, model_dir / "config.json")


def size_of(config: dict[str, Any], key: str, file: Path) -> int:
    """A size in a model's config.json. Raises `BadInput` for what can be none."""
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise BadInput(f"{file}: {key} is {value!r}, a whole number of at least 1 is needed")
    return value
