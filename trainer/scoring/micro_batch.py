"""What one forward pass takes: segments side by side as tensors.

Where the model allows it (`trainer.scoring.shared_prefix`), a micro-batch is one row in which the
episodes of a task share the ids that they begin with, and nothing is padded. Elsewhere each segment
is a padded row. Either way the trained tokens come in the order of the segments, and every sum over
a bundle is the same up to rounding. torch is imported only where tensors are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from trainer.batch import Segment
from trainer.scoring.shared_prefix import Family
from trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from torch import Tensor, device

Micro = Sequence[Segment]
"""The segments of a micro-batch."""


@dataclass(frozen=True)
class MicroBatch:
    """B rows of S inputs, and their n trained tokens in the order of the segments.

    ids_BS holds inputs, positions_BS where each stands in its segment; rows_n and columns_n say
    which hidden state predicts each trained token; targets_n are the trained ids; turns_r is how
    many of them each of R turns has, in order. families: what the one row shares; None for padded
    rows.
    """

    ids_BS: Tensor
    positions_BS: Tensor
    rows_n: Tensor
    columns_n: Tensor
    targets_n: Tensor
    sampler_logprobs_n: Tensor
    advantages_n: Tensor
    shares_n: Tensor
    turns_r: Tensor
    families: tuple[Family, ...] | None


def micro_batches(
    found: Sequence[Segment], settings: TrainerSettings, *, shared: bool
) -> tuple[Micro, ...]:
    """Group segments so that the inputs of a forward pass stay within the token budget.

    shared: rows are shared, and pieces of several tasks fill what one leaves free. The fullest
    comes first, so that memory that does not suffice is noticed at once. A segment longer than the
    budget is a micro-batch of its own: its length is the context's at most, and `trainer.budget`
    says whether it fits.
    """
    most = settings.microbatch_tokens  # which may ask for the machine's devices
    batches = _first_fit(pieces(found, most, shared=shared), most, shared)
    return tuple(tuple(batch) for batch in _fullest_first(batches, shared))


def pieces(found: Iterable[Segment], most: int, *, shared: bool) -> list[list[Segment]]:
    """Segments that fit into `most` tokens together, the fullest piece first: of one task where
    rows are shared, of about one length where they are padded."""
    tasks: dict[str, list[list[Segment]]] = {}
    for s in sorted(found, key=lambda s: (-s.n_inputs, s.task_id, s.k, s.spans[0].turn)):
        tasks.setdefault(s.task_id if shared else "", []).append([s])
    cut = (piece for alone in tasks.values() for piece in _first_fit(alone, most, shared))
    return _fullest_first(cut, shared)


def _fullest_first(cut: Iterable[list[Segment]], shared: bool) -> list[list[Segment]]:
    return sorted(cut, key=lambda segments: -tokens(segments, shared))


def _first_fit(parts: Iterable[list[Segment]], most: int, shared: bool) -> list[list[Segment]]:
    """Parts side by side, each in the first place that has room (first-fit decreasing where the
    largest part comes first)."""
    places: list[list[Segment]] = []
    for part in parts:
        for place in places:
            if tokens([*place, *part], shared) <= most:
                place += part
                break
        else:
            places.append(list(part))
    return places


def tokens(segments: Micro, shared: bool) -> int:
    """Positions of a micro-batch, padding included."""
    if shared:
        return sum(family.size for family in _families(segments))
    return len(segments) * max(s.n_inputs for s in segments)


def copies(segments: Micro, shared: bool) -> int:
    """Positions whose keys and values a shared row keeps once more: those that a family shares, for
    each of its sequences."""
    return sum(f.shared * len(f.own) for f in _families(segments)) if shared else 0


def _families(segments: Micro) -> Iterator[Family]:
    """Neighbours of one task share a prefix."""
    start = 0
    for _, same in groupby(segments, key=lambda s: s.task_id):
        family = Family.of(start, [s.ids[:-1] for s in same])
        start += family.size
        yield family


def tensors(segments: Micro, to: device, *, shared: bool) -> MicroBatch:
    """A micro-batch as tensors on a device."""
    import torch

    families = tuple(_families(segments)) if shared else None
    ids, positions, places = _padded(segments) if families is None else _row(segments, families)
    rows: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for segment, place in zip(segments, places, strict=True):
        for span in segment.spans:
            sampled = range(span.start, span.start + span.length)
            rows += [place.row] * span.length
            columns += [place.column(p - 1) for p in sampled]
            targets += [segment.ids[p] for p in sampled]
    sampler = [lp for s in segments for lp in s.sampler_logprobs]
    advantages = [a for s in segments for a in s.advantages]
    shares = [share for s in segments for share in s.shares]
    turns = [span.length for s in segments for span in s.spans]
    return MicroBatch(
        ids_BS=torch.tensor(ids, device=to),
        positions_BS=torch.tensor(positions, device=to),
        rows_n=torch.tensor(rows, device=to),
        columns_n=torch.tensor(columns, device=to),
        targets_n=torch.tensor(targets, device=to),
        sampler_logprobs_n=torch.tensor(sampler, dtype=torch.float32, device=to),
        advantages_n=torch.tensor(advantages, dtype=torch.float32, device=to),
        shares_n=torch.tensor(shares, dtype=torch.float32, device=to),
        turns_r=torch.tensor(turns, device=to),
        families=families,
    )


@dataclass(frozen=True)
class _Place:
    """Where a segment's inputs stand: `shared` of them from `start` of a row, others from `own`."""

    row: int
    start: int
    shared: int
    own: int

    def column(self, position: int) -> int:
        if position < self.shared:
            return self.start + position
        return self.own + position - self.shared


Rows = list[list[int]]


def _padded(segments: Micro) -> tuple[Rows, Rows, list[_Place]]:
    """Ids, positions and places of a row for each segment.

    Padding is on the right, where a causal model cannot see it from any trained position, so no
    attention mask is needed (and the fast attention kernels stay usable).
    """
    width = max(s.n_inputs for s in segments)
    ids = [[*s.ids[:-1], *[0] * (width - s.n_inputs)] for s in segments]
    places = [_Place(row, 0, 0, 0) for row in range(len(segments))]
    return ids, [list(range(width)) for _ in segments], places


def _row(segments: Micro, families: Sequence[Family]) -> tuple[Rows, Rows, list[_Place]]:
    """Ids, positions and places of one row for all."""
    ids: list[int] = []
    positions: list[int] = []
    places: list[_Place] = []
    left = iter(segments)
    for family in families:
        members = [next(left) for _ in family.own]
        ids += members[0].ids[: family.shared]
        positions += range(family.shared)
        for segment in members:
            places.append(_Place(0, family.start, family.shared, len(ids)))
            ids += segment.ids[family.shared : -1]
            positions += range(family.shared, segment.n_inputs)
    return [ids], [positions], places
