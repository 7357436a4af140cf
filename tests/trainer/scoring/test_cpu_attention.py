"""Attention written out for a CPU is PyTorch's, and as exact; the trainer takes it for bfloat16."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.footprint.step_bytes import _A_SCORE
from trainer.scoring import shared_prefix
from trainer.scoring.cpu_attention import attention
from trainer.scoring.onednn import by_onednn
from trainer.scoring.shared_prefix import Row, attend, writes_out

HEADS, KEY_HEADS, WIDTH = 6, 2, 16
SCALING = WIDTH**-0.5
LENGTHS = ((5, 5), (40, 71), (256, 256), (257, 300), (600, 601), (1, 200))
"""Queries, and the positions of which they are the last: in one block, at its bound, in several."""
WINDOWS = (1, 7, 255, 256, 257, 300, 599, 10_000)

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def drawn(
    queries: int,
    positions: int,
    spread: float = 1.0,
    *,
    heads: int = HEADS,
    key_heads: int = KEY_HEADS,
    width: int = WIDTH,
) -> Four:
    """Query, key, value and the gradient of what comes out, in values that bfloat16 has."""
    torch.manual_seed(queries)
    shapes = ((heads, queries), (key_heads, positions), (key_heads, positions), (heads, queries))
    query, key, value, of_out = (torch.randn(1, *shape, width).bfloat16() for shape in shapes)
    return query * spread, key * spread, value, of_out


def by_pytorch(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int = 10**6
) -> Tensor:
    """What is replaced: its kernel, with the heads of keys and values repeated."""
    n, of = query.shape[2], key.shape[2]
    seen = torch.ones(n, of, dtype=torch.bool).tril_(of - n).triu_(of - n + 1 - window)
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling)


def within(window: int, of: Callable[..., Tensor]) -> Attention:
    return lambda query, key, value, scaling: of(query, key, value, scaling, window)


def with_gradients(of: Attention, four: Four, kind: torch.dtype) -> Four:
    """The output, and the gradients of query, key and value, in float64."""
    query, key, value = inputs = [x.to(kind, copy=True).requires_grad_() for x in four[:3]]
    out = of(query, key, value, query.shape[3] ** -0.5)
    of_query, of_key, of_value = torch.autograd.grad(out, inputs, four[3].to(kind))
    return out.detach().double(), of_query.double(), of_key.double(), of_value.double()


def apart(found: Four, exact: Four) -> list[float]:
    return [((a - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize(("queries", "positions"), LENGTHS)
def test_in_float32_it_is_pytorchs_to_six_digits(queries: int, positions: int) -> None:
    four = drawn(queries, positions)
    exact = with_gradients(by_pytorch, four, torch.float64)
    assert max(apart(with_gradients(attention, four, torch.float32), exact)) < 2e-6


@pytest.mark.parametrize(("queries", "positions"), LENGTHS)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_is_pytorchs_mask_to_six_digits(queries: int, positions: int, window: int) -> None:
    four = drawn(queries, positions)
    exact = with_gradients(within(window, by_pytorch), four, torch.float64)
    found = with_gradients(within(window, attention), four, torch.float32)
    for ours, theirs in zip(found, exact, strict=True):  # with a window of 1 two are 0
        assert (ours - theirs).norm() < 2e-6 * max(theirs.norm().item(), 1.0)


@pytest.mark.parametrize(("queries", "positions"), LENGTHS)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_in_bfloat16_it_is_about_as_exact_as_pytorchs(
    queries: int, positions: int, spread: float
) -> None:
    """With scores of up to some 60, too, which bfloat16 would round to quarters."""
    four = drawn(queries, positions, spread)
    exact = with_gradients(by_pytorch, four, torch.float64)
    with by_onednn():  # as in a pass
        ours = apart(with_gradients(attention, four, torch.bfloat16), exact)
    theirs = apart(with_gradients(by_pytorch, four, torch.bfloat16), exact)
    assert all(a < 1.6 * b + 1e-3 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("last", [3, 255, 256, 550])
def test_a_position_sees_nothing_of_later_ones(last: int) -> None:
    query, key, value, _ = drawn(600, 600)
    before = attention(query, key, value, SCALING)
    for x in (key, value):
        x[:, :, last:] += 1
    after = attention(query, key, value, SCALING)
    assert torch.equal(before[:, :, :last], after[:, :, :last])
    assert not torch.equal(before[:, :, last:], after[:, :, last:])


def test_nothing_of_the_size_of_the_scores_is_kept_for_the_backward_pass() -> None:
    query, key, value = (x.requires_grad_() for x in drawn(600, 601)[:3])
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention(query, key, value, SCALING)
    assert sorted(kept) == sorted(x.numel() for x in (query, key, value))


@pytest.mark.parametrize(
    ("item_bytes", "features", "on_gpu", "written_out"),
    [
        (2, {"avx512_bf16"}, False, True),
        (2, {"avx2"}, False, False),
        (4, {"avx512_bf16"}, False, False),
        (2, {"avx512_bf16"}, True, False),
    ],
)
def test_the_trainer_takes_it_for_bfloat16_where_the_processor_multiplies_that(
    item_bytes: int,
    features: set[str],
    on_gpu: bool,
    written_out: bool,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_prefix, "cpu_features", lambda: frozenset(features))
    monkeypatch.setattr(
        shared_prefix, "_multiplies_bf16", shared_prefix._multiplies_bf16.__wrapped__
    )
    assert writes_out(tiny_model, item_bytes, on_gpu=on_gpu) is written_out


@pytest.mark.parametrize("window", [None, 50])
def test_a_row_of_branches_is_each_sequence_by_itself_and_so_are_gradients(
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through the door that the model's layers use."""
    monkeypatch.setattr(shared_prefix, "_multiplies_bf16", lambda: True)
    prompt, turn = tuple(range(9)), tuple(range(20, 160))
    row = Row.of([prompt, (*prompt, *turn), (*prompt, *turn[:60], 1, 2, 3), (*range(200, 207),)])
    assert row.pieces == (9, 60, 80, 3, 7)
    four = drawn(159, 159)

    def in_the_row(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        module = torch.nn.Module()
        out, _ = attend(module, query, key, value, None, scaling, sliding_window=window, row=row)
        return out.transpose(1, 2)

    def one_by_one(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        parts = []
        for branch in row.branches:
            q, k, v = (x[:, :, branch.columns] for x in (query, key, value))
            parts.append(by_pytorch(q, k, v, scaling, window or 10**6)[:, :, branch.shared :])
        return torch.cat(parts, dim=2)

    exact = with_gradients(one_by_one, four, torch.float64)
    with by_onednn():
        ours = with_gradients(in_the_row, four, torch.bfloat16)
    assert max(apart(ours, exact)) < 1e-2
    assert max(apart(with_gradients(in_the_row, four, torch.float32), exact)) < 2e-6


@pytest.mark.parametrize("window", [100, 300, 599])
def test_padded_rows_and_other_dtypes_see_a_window_in_blocks(window: int) -> None:
    def padded(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        module = torch.nn.Module()
        out, _ = attend(module, query, key, value, None, scaling, sliding_window=window)
        return out.transpose(1, 2)

    four = drawn(600, 600)
    exact = with_gradients(within(window, by_pytorch), four, torch.float64)
    assert max(apart(with_gradients(padded, four, torch.float32), exact)) < 2e-6


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of what operations made and nothing has let go of; `most` at a time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        where, size = storage.data_ptr(), storage.nbytes()
        if where in self._known:
            return
        self._known.add(where)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, where, size)

    def _forget(self, where: int, size: int) -> None:
        self._known.discard(where)
        self.now -= size


def test_a_block_holds_no_more_than_the_forecast_counts() -> None:
    positions = 4096
    query, key, value, of_out = drawn(positions, positions)
    inputs = [x.requires_grad_() for x in (query, key, value)]
    with Live() as live:
        torch.autograd.grad(attention(query, key, value, SCALING), inputs, of_out)
    counted = HEADS * _A_SCORE * positions
    assert 0.8 * counted < live.most < 1.1 * counted
