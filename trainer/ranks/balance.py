"""Which segments of a bundle each rank scores.

A rank waits for the one that has most to do, so the ranks get about as many tokens each. Segments
that begin alike share that in a row (`trainer.scoring.shared_prefix`), and every rank that has one
of them computes it anew, so they stay together where that leaves the ranks balanced.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.batch import Segment
from trainer.scoring.micro_batch import pieces, tokens

_PIECES = 4
"""A rank's fair share has at least so many pieces, where segments are short enough. Of 1 to 12, 4
and 8 left the fullest rank the least: with 4 it had, on the first and the last bundle of a night,
1.02 times the fair share of one process's tokens for 2 ranks, 1.09 for 4, 1.10 and 1.20 for 8, what
ranks compute twice included."""


def parts(found: Sequence[Segment], of: int, *, shared: bool) -> list[list[Segment]]:
    """The segments of each of `of` ranks: every segment once, the same parts on every rank.

    shared: rows are shared. The largest piece goes first, each to the rank with the fewest tokens
    (Graham's LPT rule). A rank has none where there are fewer segments than ranks.
    """
    whole = sum(s.n_inputs for s in found)
    given: list[list[Segment]] = [[] for _ in range(of)]
    taken = [0] * of
    for segments in pieces(found, max(1, whole // (of * _PIECES)), shared=shared):
        rank = min(range(of), key=lambda r: taken[r])
        given[rank] += segments
        taken[rank] += tokens(segments, shared)
    return given
