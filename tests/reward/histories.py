"""A pool's history, written down group by group."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from fieldkit.records import Draw
from reward.pool_history import PoolHistory


def history_of(rows: Iterable[tuple[int, Draw]]) -> PoolHistory:
    """The history of (step, group) rows, whose steps rise."""
    by_step = groupby(rows, key=lambda row: row[0])
    return PoolHistory(tuple((step, tuple(d for _, d in found)) for step, found in by_step))
