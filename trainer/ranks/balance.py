"""Which segments of a bundle each rank scores.

A rank waits for the one that has most to do, so the ranks get about as many tokens each. Segments
that begin alike share that in a row (`trainer.scoring.shared_prefix`), and every rank that has one
of them computes it anew, so they stay together where that leaves the ranks balanced.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.batch import Segment
from trainer.scoring.micro_batch import by_ids, pieces, tokens

_PIECES = (1, 2, 3, 4, 6, 8)
"""Of a rank's fair share, each tried. Many small pieces balance well, and share little. Of a
night's bundles the fullest of 2 ranks had 1.00 to 1.03 times the fair share of one process's
tokens, of 4 ranks 1.10, of 8 1.11 to 1.19."""


def parts(found: Sequence[Segment], of: int, *, shared: bool) -> list[list[Segment]]:
    """The segments of each of `of` ranks: every segment once, the same parts on every rank.

    shared: rows are shared. The way is taken that leaves the fullest rank the fewest tokens, what
    several ranks compute included. A rank has none where there are fewer segments than ranks.
    """
    ordered = sorted(found, key=by_ids)
    if of == 1 or not ordered:
        return [ordered, *([] for _ in range(of - 1))]
    whole = tokens(ordered, shared)
    sizes = [max(1, whole // (of * n)) for n in _PIECES]
    ways = [_dealt(pieces(ordered, size, shared=shared), of, shared) for size in sizes]
    return min(ways, key=lambda way: max(way[0]))[1]


def _dealt(
    cut: Sequence[Sequence[Segment]], of: int, shared: bool
) -> tuple[list[int], list[list[Segment]]]:
    """The tokens and the segments of each rank: the largest piece first, each to the rank with the
    fewest tokens (Graham's LPT rule)."""
    taken = [0] * of
    given: list[list[Segment]] = [[] for _ in range(of)]
    for segments in cut:
        rank = min(range(of), key=lambda r: taken[r])
        given[rank] += segments
        taken[rank] += tokens(segments, shared)
    return taken, given
