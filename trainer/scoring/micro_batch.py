"""What one forward pass takes: segments side by side as tensors.

Where the model allows it (`trainer.scoring.shared_prefix`), a micro-batch is one row in which
segments share the ids that they begin with: the system's text of all tasks, the prompt of a task,
the turns until two attempts at it part. Nothing is padded. Elsewhere each segment is a padded row.
Either way the trained tokens come in the order of the segments, and every sum over a bundle is the
same up to rounding. torch is imported only where tensors are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from fieldkit.records import in_common
from trainer.batch import Segment
from trainer.scoring.shared_prefix import Row
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
    many of them each of R turns has, in order. row: what is where in the one row; None for padded
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
    row: Row | None


def micro_batches(
    found: Sequence[Segment], settings: TrainerSettings, *, shared: bool
) -> tuple[Micro, ...]:
    """Group segments so that the inputs of a forward pass stay within the token budget.

    shared: rows are shared, and a micro-batch has several pieces where they fit. The fullest comes
    first, so that memory that does not suffice is noticed early. A segment longer than the budget
    is a micro-batch of its own: its length is the context's at most, and `trainer.footprint` says
    whether it fits.
    """
    most = settings.microbatch_tokens  # which may ask for the machine's devices
    batches = pieces(found, most, shared=shared)
    if shared:
        batches = [sorted(batch, key=by_ids) for batch in _first_fit(batches, most, shared)]
    return tuple(tuple(batch) for batch in _fullest_first(batches, shared))


def pieces(found: Iterable[Segment], most: int, *, shared: bool) -> list[list[Segment]]:
    """Segments that fit into `most` tokens together, the fullest piece first: such as begin alike
    where rows are shared, of about one length where they are padded."""
    ordered = sorted(found, key=by_ids)
    if shared:
        cut = _runs(ordered, most)
    else:
        longest_first = _fullest_first(([s] for s in ordered), shared)
        cut = _first_fit(longest_first, most, shared)
    return _fullest_first(cut, shared)


def by_ids(segment: Segment) -> tuple[tuple[int, ...], str, int, int]:
    """The order in which neighbours begin alike; no two of a bundle's segments are equal in it."""
    return segment.ids, segment.task_id, segment.k, segment.spans[0].turn


def _fullest_first(cut: Iterable[list[Segment]], shared: bool) -> list[list[Segment]]:
    return sorted(cut, key=lambda segments: -tokens(segments, shared))


def _runs(found: Sequence[Segment], most: int) -> list[list[Segment]]:
    """Sorted segments cut into runs that fit into `most` tokens, with as few in all as runs can
    have, and of such cuts the one with the fewest runs."""
    own = _own(found)
    cuts = [(0, 0, 0)]  # of so many segments: tokens, runs, and where the last run begins
    for end in range(1, len(found) + 1):
        ways: list[tuple[int, int, int]] = []
        after = 0
        for start in reversed(range(end)):
            size = found[start].n_inputs + after
            if ways and size > most:
                break
            before, runs, _ = cuts[start]
            ways.append((before + size, runs + 1, start))
            after += own[start]
        cuts.append(min(ways))
    runs_back, end = [], len(found)
    while end:
        start = cuts[end][2]
        runs_back.append(list(found[start:end]))
        end = start
    return runs_back[::-1]


def _first_fit(parts: Iterable[list[Segment]], most: int, shared: bool) -> list[list[Segment]]:
    """Parts side by side, each in the first place that has room (first-fit decreasing where the
    largest part comes first). What parts may have in common is not counted."""
    places: list[list[Segment]] = []
    taken: list[int] = []
    for part in parts:
        size = tokens(part, shared)
        for i, place in enumerate(places):
            more = size if shared else len(part) * place[0].n_inputs
            if taken[i] + more <= most:
                place += part
                taken[i] += more
                break
        else:
            places.append(list(part))
            taken.append(size)
    return places


def tokens(segments: Micro, shared: bool) -> int:
    """Positions of a micro-batch, padding included."""
    return sum(_own(segments)) if shared else len(segments) * max(s.n_inputs for s in segments)


def _own(segments: Micro) -> list[int]:
    """Of each segment the inputs that it does not have in common with the one before it."""
    pairs = pairwise(((), *(s.ids[:-1] for s in segments)))
    return [len(ids) - in_common(before, ids) for before, ids in pairs]


def copies(segments: Micro, shared: bool) -> int:
    """Positions whose keys and values a shared row keeps once more: of each sequence those that it
    shares with the one before it."""
    return sum(s.n_inputs for s in segments) - tokens(segments, shared) if shared else 0


def tensors(segments: Micro, to: device, *, shared: bool) -> MicroBatch:
    """A micro-batch as tensors on a device."""
    import torch

    row = Row.of([s.ids[:-1] for s in segments]) if shared else None
    ids, positions, places = _padded(segments) if row is None else _in_row(segments, row)
    rows: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for segment, (number, of_ids) in zip(segments, places, strict=True):
        for span in segment.spans:
            sampled = range(span.start, span.start + span.length)
            rows += [number] * span.length
            columns += [of_ids[p - 1] for p in sampled]
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
        row=row,
    )


Rows = list[list[int]]
Place = tuple[int, Sequence[int]]
"""A segment's row, and the column of each of its inputs."""


def _padded(segments: Micro) -> tuple[Rows, Rows, list[Place]]:
    """Ids, positions and places of a row for each segment.

    Padding is on the right, where a causal model cannot see it from any trained position, so no
    attention mask is needed (and the fast attention kernels stay usable).
    """
    width = max(s.n_inputs for s in segments)
    ids = [[*s.ids[:-1], *[0] * (width - s.n_inputs)] for s in segments]
    columns = list(range(width))
    return ids, [columns for _ in segments], [(row, columns) for row in range(len(segments))]


def _in_row(segments: Micro, row: Row) -> tuple[Rows, Rows, list[Place]]:
    """Ids, positions and places of one row for all."""
    ids: list[int] = []
    positions: list[int] = []
    for segment, branch in zip(segments, row.branches, strict=True):
        ids += segment.ids[branch.shared : -1]
        positions += range(branch.shared, segment.n_inputs)
    return [ids], [positions], [(0, branch.columns) for branch in row.branches]
