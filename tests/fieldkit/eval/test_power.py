"""The power of the exact test, against simulation, sums by hand and published tables."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval import stats
from fieldkit.eval.power import MOST_TASKS, detectable_change, mcnemar_power, tasks_needed


def p_value(lost: int, gained: int) -> float:
    """McNemar's exact p-value of the discordant counts, as the tables give it."""
    return stats.mcnemar(
        [True] * lost + [False] * (gained + 1), [False] * lost + [True] * gained + [False]
    ).p_value


def enumerated(n: int, gained: float, lost: float) -> float:
    """The same by summing over every outcome, with the test that the tables use."""
    total = 0.0
    for won, gone in itertools.product(range(n + 1), repeat=2):
        same = n - won - gone
        if same < 0 or p_value(gone, won) >= 0.05:
            continue
        ways = math.comb(n, won) * math.comb(n - won, gone)
        total += ways * gained**won * lost**gone * (1 - gained - lost) ** same
    return total


@pytest.mark.parametrize(
    ("n", "gained", "lost"), [(6, 0.9, 0.05), (12, 0.4, 0.1), (25, 0.3, 0.05), (30, 0.2, 0.2)]
)
def test_power_is_the_sum_over_every_outcome(n: int, gained: float, lost: float) -> None:
    assert mcnemar_power(n, gained, lost) == pytest.approx(enumerated(n, gained, lost), abs=1e-12)


def test_power_agrees_with_simulated_nights() -> None:
    rng = random.Random(5)
    gained, lost, n, nights = 0.15, 0.05, 158, 4000
    found = 0
    for _ in range(nights):
        drawn = [rng.random() for _ in range(n)]
        won = sum(u < gained for u in drawn)
        gone = sum(gained <= u < gained + lost for u in drawn)
        found += p_value(gone, won) < 0.05
    # three standard errors of the simulated share
    assert mcnemar_power(n, gained, lost) == pytest.approx(found / nights, abs=0.023)


def test_five_discordant_pairs_are_never_enough_and_six_one_sided_ones_are() -> None:
    assert mcnemar_power(5, 1.0, 0.0) == 0.0
    assert mcnemar_power(6, 1.0, 0.0) == pytest.approx(1.0)
    assert tasks_needed(1.0, 0.0) == 6


def test_at_a_smaller_level_more_pairs_have_to_differ() -> None:
    # n pairs in one direction have p = 2 / 2^n: six are 0.031, seven 0.016, eight 0.008.
    assert [mcnemar_power(n, 1.0, 0.0, 0.01) for n in (7, 8)] == [0.0, pytest.approx(1.0)]
    assert tasks_needed(1.0, 0.0, 0.01) == 8
    wide, narrow = detectable_change(158, 0.2, 0.01), detectable_change(158, 0.2)
    assert wide is not None
    assert narrow is not None
    assert wide > narrow


def test_without_an_effect_the_test_finds_one_less_often_than_its_level() -> None:
    assert mcnemar_power(158, 0.1, 0.1) < 0.05
    assert tasks_needed(0.1, 0.1) is None


def test_the_tasks_needed_reach_the_power_and_one_fewer_does_not() -> None:
    n = tasks_needed(0.10, 0.05)
    assert n is not None
    assert mcnemar_power(n, 0.10, 0.05) >= 0.8
    assert mcnemar_power(n - 1, 0.10, 0.05) < 0.8


def test_the_search_goes_up_to_its_last_number() -> None:
    n = tasks_needed(0.0533, 0.0467)
    assert n is not None
    assert MOST_TASKS * 0.9 < n <= MOST_TASKS
    assert tasks_needed(0.0515, 0.0485) is None


def test_the_tasks_needed_lie_close_to_connors_formula() -> None:
    # Connor (1987), Biometrics 43:207-211: asymptotic, slightly too small for an exact test.
    gained, lost = 0.20, 0.10
    psi, delta = gained + lost, gained - lost
    connor = (1.959964 * psi**0.5 + 0.841621 * (psi - delta**2) ** 0.5) ** 2 / delta**2
    n = tasks_needed(gained, lost)
    assert n is not None
    assert connor <= n <= 1.1 * connor


def test_the_third_documents_three_tasks_more_of_158_would_have_needed_hundreds() -> None:
    # 10 -> 13 of 158 at the pairing that is kindest to it: nothing lost, three gained.
    n = tasks_needed(3 / 158, 0.0)
    assert n is not None
    assert n > 2 * 158


def test_the_detectable_change_is_found_with_the_power_and_a_smaller_one_is_not() -> None:
    change = detectable_change(158, 0.2)
    assert change is not None
    assert mcnemar_power(158, (0.2 + change) / 2, (0.2 - change) / 2) == pytest.approx(
        0.8, abs=1e-3
    )
    assert mcnemar_power(158, 0.1 + change / 3, 0.1 - change / 3) < 0.8


def test_too_few_disagreements_can_show_nothing() -> None:
    assert detectable_change(20, 0.05) is None


def test_rates_that_are_no_probabilities_are_an_error() -> None:
    with pytest.raises(ValueError, match="disjoint"):
        mcnemar_power(10, 0.8, 0.4)


@pytest.mark.parametrize(("gained", "lost"), [(-0.1, 0.2), (0.2, -0.1), (0.6, 0.5)])
def test_rates_that_are_no_probabilities_are_refused(gained: float, lost: float) -> None:
    with pytest.raises(ValueError, match="no probabilities of disjoint events"):
        mcnemar_power(10, gained, lost)


def test_nothing_is_found_without_a_pair_or_a_change() -> None:
    assert mcnemar_power(0, 0.5, 0.1) == mcnemar_power(100, 0.0, 0.0) == 0.0


def test_rates_that_are_no_probabilities_are_refused_where_they_are_equal_too() -> None:
    for gained, lost in ((0.7, 0.7), (-1.0, -1.0), (0.9, 0.4), (math.nan, 0.1), (0.1, math.nan)):
        with pytest.raises(BadInput, match="no probabilities of disjoint events"):
            tasks_needed(gained, lost)
