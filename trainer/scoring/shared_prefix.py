"""Attention in a row whose sequences share what they begin with.

What an id becomes in a causal model does not depend on what follows it, so one copy of a prompt
serves all that follow it. Linear layers see a row as it is; attention is the one place where
positions meet, and here each sequence sees the shared positions and its own. Outputs and gradients
are those of the sequences by themselves, up to rounding. Nothing here knows a bundle or a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.files.atomic import read_json
from fieldkit.gate.processor import cpu_features

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from torch.nn import Module

ATTENTION = "shared_prefix"
"""The name under which transformers finds `attend`."""

_MODELS = ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""`model_type`s whose attention goes through transformers' interface and through nothing else."""


@dataclass(frozen=True)
class Family:
    """Sequences that begin alike, in a row: from `start`, `shared` positions that all of them have,
    then of each sequence its own, `own` of them."""

    start: int
    shared: int
    own: tuple[int, ...]

    @classmethod
    def of(cls, start: int, sequences: Sequence[tuple[int, ...]]) -> Family:
        """The family of these ids. A single sequence shares nothing."""
        first, last = min(sequences), max(sequences)  # what these share lies between them all
        shorter = min(len(first), len(last))
        shared = next((i for i in range(shorter) if first[i] != last[i]), shorter)
        shared = shared if len(sequences) > 1 else 0
        return cls(start, shared, tuple(len(ids) - shared for ids in sequences))

    @property
    def size(self) -> int:
        """Positions in the row."""
        return self.shared + sum(self.own)


def can_share(model_dir: Path) -> bool:
    """Whether a model's rows may be shared: its attention is known, and every layer of it sees the
    whole context."""
    config = read_json(model_dir / "config.json")
    layers = config.get("layer_types")
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    whole = set(layers) == {"full_attention"} if layers else not windowed
    return config.get("model_type") in _MODELS and whole


def has_lean_layers(model_dir: Path) -> bool:
    """Whether `lean_layers` replaces a model's: it shares rows, and its MLPs are dense and gated by
    SiLU."""
    config = read_json(model_dir / "config.json")
    dense = not {"num_experts", "num_local_experts"} & config.keys()
    return can_share(model_dir) and dense and config.get("hidden_act", "silu") == "silu"


def writes_out(model_dir: Path, item_bytes: int, *, on_gpu: bool) -> bool:
    """`is_written_out` of a model by its folder."""
    return can_share(model_dir) and is_written_out(item_bytes, on_gpu=on_gpu)


def is_written_out(item_bytes: int, *, on_gpu: bool) -> bool:
    """Whether attention between numbers of so many bytes is `cpu_attention`'s: in bfloat16, on a
    processor that multiplies it."""
    return item_bytes == 2 and not on_gpu and _multiplies_bf16()


@cache
def _multiplies_bf16() -> bool:
    return "avx512_bf16" in cpu_features()


def register() -> None:
    """Make `attend` known to transformers as `ATTENTION`, which makes no masks for it."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)


def attend(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    families: Sequence[Family] | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention, within each family of the one row where there are `families`.

    query (B, heads, S, d), key and value (B, key heads, S, d) → (B, S, heads, d). Without families
    each of the B rows is one sequence, padded on the right. Dropout is 0 in this trainer.
    """
    from torch import cat, split
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if families is None:
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling)
    lengths = [n for f in families for n in (f.shared, *f.own)]
    pieces = zip(*(split(x, lengths, dim=2) for x in (query, key, value)), strict=True)
    longest = max((f.shared + max(f.own) for f in families if f.shared), default=0)
    parts = [part for f in families for part in _within(f, pieces, scaling, longest)]
    return cat(parts, dim=2).transpose(1, 2), None


def _within(
    family: Family,
    pieces: Iterator[tuple[Tensor, Tensor, Tensor]],
    scaling: float | None,
    longest: int,
) -> Iterator[Tensor]:
    """Outputs at the shared positions, then at those of each sequence.

    pieces: queries, keys and values of these and of what follows in the row.
    """
    from torch import cat

    shared_query, shared_key, shared_value = next(pieces)
    if family.shared:
        yield _causal(shared_query, shared_key, shared_value, scaling, longest)
    for length in family.own:
        query, key, value = next(pieces)
        if length and family.shared:
            key, value = (cat([a, b], dim=2) for a, b in ((shared_key, key), (shared_value, value)))
        if length:
            yield _causal(query, key, value, scaling, longest)


def _causal(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, longest: int
) -> Tensor:
    """The queries are the last positions of the keys, of which no sequence has more than
    `longest`."""
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    n, of = query.shape[2], key.shape[2]
    if is_written_out(query.dtype.itemsize, on_gpu=query.is_cuda):
        from trainer.scoring.cpu_attention import attention

        return attention(query, key, value, query.shape[3] ** -0.5 if scaling is None else scaling)
    if (repeats := query.shape[1] // key.shape[1]) > 1:
        # As late as this: a view of repeated keys would keep all of a row's for the backward pass.
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    if n == of:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    mask: Any
    if query.is_cuda:
        mask = causal_lower_right(n, of)
    else:  # which is written out here, for each sequence and each layer
        mask = _triangle(longest, query.dtype)[of - n : of, :of]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)


@lru_cache(maxsize=1)  # the layers of a pass have one row after another
def _triangle(length: int, kind: dtype) -> Tensor:
    """What is added to attention's scores so that a position sees no later one. The rows of a
    sequence's last positions are the mask of these."""
    from torch import full

    return full((length, length), float("-inf"), dtype=kind).triu_(1)


def forget() -> None:
    """Let go what is kept between the layers of a pass."""
    _triangle.cache_clear()
