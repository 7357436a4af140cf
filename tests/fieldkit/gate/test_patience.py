"""Waiting is counted in time that the waiting process was awake for."""

from __future__ import annotations

from collections.abc import Iterator

from fieldkit.gate.patience import Patience


def clock(*moments: float) -> Iterator[float]:
    return iter(moments)


def test_patience_is_over_after_its_seconds() -> None:
    times = clock(0, 4, 8, 10, 11)
    patience = Patience(10, longest_look=5, clock=lambda: next(times))
    assert [patience.over() for _ in range(4)] == [False, False, True, True]


def test_a_standstill_counts_for_no_more_than_one_look() -> None:
    times = clock(0, 1, 1000, 1001, 1005)
    patience = Patience(10, longest_look=5, clock=lambda: next(times))
    assert [patience.over() for _ in range(4)] == [False, False, False, True]
    assert patience.spent == 11


def test_without_any_patience_the_first_look_is_the_last() -> None:
    assert Patience(0, longest_look=5, clock=lambda: 7.0).over()
