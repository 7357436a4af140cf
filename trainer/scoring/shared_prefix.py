"""Attention in a row whose sequences share what they begin with.

What an id becomes in a causal model does not depend on what follows it, so one copy of what
sequences begin with serves all of them, and a row is a tree of ids. Linear layers see it as it is;
attention is the one place where positions meet, and here each sequence sees its own branch. Outputs
and gradients are those of the sequences by themselves, up to rounding. Nothing here knows a bundle
or a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.files.atomic import read_json
from fieldkit.gate.processor import cpu_features
from fieldkit.records import in_common
from trainer.scoring.parallel import MOST

if TYPE_CHECKING:
    from torch import Tensor, device, dtype
    from torch.nn import Module

ATTENTION = "shared_prefix"
"""The name under which transformers finds `attend`."""

_WINDOWED = ("gemma3_text", "mistral", "qwen2", "qwen3", "qwen3_moe")
_MODELS = (*_WINDOWED, "llama", "qwen2_moe")
"""`model_type`s whose attention goes through transformers' interface and through nothing else; the
first ones tell it a layer's sliding window."""
_OWN_LAYERS = ("gemma3_text",)
"""Of them those with norms and MLPs that are not Llama's."""


@dataclass(frozen=True)
class Branch:
    """A sequence in a row. columns: where its ids stand. own: so many of them, the last ones, stand
    there for it. seen: the pieces of the row that it consists of, in its order."""

    columns: tuple[int, ...]
    own: int
    seen: tuple[int, ...]

    @property
    def shared(self) -> int:
        """Ids that it has in common with the sequence before it, and that stand there for that."""
        return len(self.columns) - self.own


@dataclass(frozen=True)
class Row:
    """Sequences in one row, each without what it has in common with the one before it.

    pieces: the lengths that the row is cut into, so that each sequence consists of whole ones. In
    a sorted order nothing that two of them begin with is there twice: what a sequence has in common
    with any earlier one, it has in common with the one before it.
    """

    pieces: tuple[int, ...]
    branches: tuple[Branch, ...]

    @classmethod
    def of(cls, sequences: Sequence[tuple[int, ...]]) -> Row:
        """The row of these ids, in their order."""
        columns: list[tuple[int, ...]] = [()]
        owns: list[int] = []
        end = 0
        cuts = {0}  # where a piece begins, or the row ends
        for before, ids in pairwise(((), *sequences)):
            shared = columns[-1][: in_common(before, ids)]
            if shared:
                cuts.add(shared[-1] + 1)
            start, end = end, end + len(ids) - len(shared)
            cuts.add(end)
            columns.append((*shared, *range(start, end)))
            owns.append(end - start)
        number = {column: i for i, column in enumerate(sorted(cuts))}
        branches = tuple(
            Branch(of_ids, own, tuple(number[c] for c in of_ids if c in number))
            for of_ids, own in zip(columns[1:], owns, strict=True)
        )
        return cls(tuple(b - a for a, b in pairwise(number)), branches)


def can_share(model_dir: Path) -> bool:
    """Whether a model's rows may be shared: its attention is known, and looks back only."""
    config = read_json(model_dir / "config.json")
    layers = config.get("layer_types")
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    kinds = set(layers or ["sliding_attention" if windowed else "full_attention"])
    models = _MODELS if kinds == {"full_attention"} else _WINDOWED
    known = config.get("model_type") in models and kinds <= {"full_attention", "sliding_attention"}
    return known and not config.get("use_bidirectional_attention")


def has_lean_layers(model_dir: Path) -> bool:
    """Whether `lean_layers` replaces a model's: it shares rows, its norms are Llama's, and its MLPs
    are dense and gated by SiLU."""
    config = read_json(model_dir / "config.json")
    alike = config.get("model_type") not in _OWN_LAYERS
    dense = not {"num_experts", "num_local_experts"} & config.keys()
    return can_share(model_dir) and alike and dense and config.get("hidden_act", "silu") == "silu"


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
    sliding_window: int | None = None,
    row: Row | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention, within each sequence of the one row where there is a `row`.

    query (B, heads, S, d), key and value (B, key heads, S, d) → (B, S, heads, d). Without a `row`
    each of the B rows is one sequence, padded on the right. sliding_window: positions that each one
    sees, itself included; None: all before it. Dropout is 0 in this trainer.
    """
    from torch import cat, split
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if row is None:
        if sliding_window is not None and key.shape[2] > sliding_window:
            return _windowed(query, key, value, scaling, sliding_window).transpose(1, 2), None
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling)
    keys, values = (split(x, [*row.pieces], dim=2) for x in (key, value))
    queries = split(query, [b.own for b in row.branches], dim=2)
    longest = max((len(b.columns) for b in row.branches if b.shared), default=0)
    parts = [
        _causal(
            own, _joined(keys, b.seen), _joined(values, b.seen), scaling, sliding_window, longest
        )
        for own, b in zip(queries, row.branches, strict=True)
        if b.own
    ]
    return cat(parts, dim=2).transpose(1, 2), None


def _joined(pieces: Sequence[Tensor], seen: Sequence[int]) -> Tensor:
    """A sequence's keys or values. A copy also where it is one piece: a view that attention keeps
    for its backward pass would keep those of the whole row."""
    from torch import cat

    return cat([pieces[i] for i in seen], dim=2)


def _causal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    longest: int,
) -> Tensor:
    """The queries are the last positions of the keys, of which no sequence has more than
    `longest`."""
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    n, of = query.shape[2], key.shape[2]
    if window is not None and of <= window:
        window = None
    if is_written_out(query.dtype.itemsize, on_gpu=query.is_cuda):
        from trainer.scoring.cpu_attention import attention

        scaling = query.shape[3] ** -0.5 if scaling is None else scaling
        return attention(query, key, value, scaling, window)
    if window is not None:
        return _windowed(query, key, value, scaling, window)
    key, value = _repeated(query, key, value)
    if n == of:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    mask: Any
    if query.is_cuda:
        mask = causal_lower_right(n, of)
    else:  # which is written out here, for each sequence and each layer
        mask = _hidden(longest, None, query.dtype, query.device)[of - n : of, :of]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)


def _windowed(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int
) -> Tensor:
    """`_causal` where sequences are longer than their window, of any number of them: blocks of
    queries, and the keys that each of these sees."""
    from torch import cat
    from torch.nn.functional import scaled_dot_product_attention

    from trainer.scoring.cpu_attention import BLOCK, blocks

    key, value = _repeated(query, key, value)
    whole = _hidden(BLOCK + window - 1, window, query.dtype, query.device)
    parts = []
    for rows, seen in blocks(query.shape[2], key.shape[2], window):
        own, n, of = query[:, :, rows], rows.stop - rows.start, seen.stop - seen.start
        mask = whole[of - n : of, :of].contiguous()  # a GPU's kernels want them aligned
        keys, values = key[:, :, seen], value[:, :, seen]
        parts.append(scaled_dot_product_attention(own, keys, values, attn_mask=mask, scale=scaling))
    return cat(parts, dim=2)


def _repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each query's head."""
    repeats = query.shape[1] // key.shape[1]
    if repeats == 1:
        return key, value
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)


@lru_cache(maxsize=MOST + 1)  # the layers of a micro-batch have one row, and all rows one window
def _hidden(length: int, window: int | None, kind: dtype, where: device) -> Tensor:
    """What is added to attention's scores so that a position sees no later one, and none before its
    window. The rows of a sequence's last positions are the mask of these."""
    from torch import full

    shape, never = (length, length), float("-inf")
    mask = full(shape, never, dtype=kind, device=where).triu_(1)
    if window is not None:
        mask += full(shape, never, dtype=kind, device=where).tril_(-window)
    return mask


def forget() -> None:
    """Let go what is kept between the layers of a pass."""
    _hidden.cache_clear()
