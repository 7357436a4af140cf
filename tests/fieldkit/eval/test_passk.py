from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.errors import BadInput
from fieldkit.eval.passk import (
    PassAtK,
    mean_pass_at_k,
    pass_at_k,
    pass_at_k_difference,
    pass_at_k_estimator,
)


@pytest.mark.parametrize(("n", "passed", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 2), (4, 0, 4)])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_pass(n: int, passed: int, k: int) -> None:
    attempts = [i < passed for i in range(n)]
    subsets = list(itertools.combinations(attempts, k))
    expected = sum(any(s) for s in subsets) / len(subsets)
    assert pass_at_k(n, passed, k) == pytest.approx(expected)


def test_pass_at_1_is_the_pass_rate() -> None:
    assert pass_at_k(4, 3, 1) == 0.75


def test_enough_passes_make_it_certain() -> None:
    assert pass_at_k(10, 8, 3) == 1.0


@pytest.mark.parametrize("k", [0, -1])
def test_no_attempt_is_no_k(k: int) -> None:
    with pytest.raises(BadInput, match=f"^pass@{k}: k has to be 1 or more"):
        pass_at_k(4, 1, k)


def test_fewer_attempts_than_k_are_refused() -> None:
    with pytest.raises(BadInput, match="pass@5"):
        pass_at_k(4, 1, 5)
    with pytest.raises(BadInput, match="task b"):
        mean_pass_at_k({"a": [True, False], "b": [True]}, 2)


def test_the_mean_is_over_tasks_with_an_interval() -> None:
    found = mean_pass_at_k({"a": [True, True], "b": [False, False], "c": [True, False]}, 1)
    assert found.value == pytest.approx(0.5)
    assert found.interval is not None
    assert 0 <= found.interval.low < 0.5 < found.interval.high <= 1


def test_the_difference_is_paired_by_task_whatever_the_order() -> None:
    first = {"a": [True, False], "b": [False, False], "c": [False, True]}
    second = {"c": [True, True], "b": [False, True], "a": [True, True]}
    assert pass_at_k_difference(first, second, 1).value == pytest.approx(0.5)


def test_a_difference_over_other_tasks_is_refused() -> None:
    with pytest.raises(BadInput, match="b is in one only"):
        pass_at_k_difference({"a": [True]}, {"a": [True], "b": [True]}, 1)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_estimator_is_the_mean_over_every_subset(counts: tuple[int, int]) -> None:
    n, c = counts
    samples = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        every = [any(chosen) for chosen in itertools.combinations(samples, k)]
        assert pass_at_k_estimator(n, c, k) == pytest.approx(sum(every) / len(every))


def test_a_k_above_the_samples_is_an_error_and_not_one() -> None:
    with pytest.raises(BadInput, match="pass@5 needs at least 5 attempts"):
        pass_at_k_estimator(3, 0, 5)


def test_a_result_has_an_interval_over_problems() -> None:
    rows = [{"task_id": str(i), "n": 4, "passed": i % 5} for i in range(20)]
    result = PassAtK((1, 2)).from_rows(rows)
    found = result.estimate(2)
    assert found.value == pytest.approx(result.pass_at[2])
    assert found.interval is not None
    assert found.interval.low < found.value < found.interval.high


def test_problems_that_are_all_alike_have_no_interval() -> None:
    passing, failing = ({str(i): [ok] for i in range(10)} for ok in (True, False))
    always = PassAtK([1]).from_rows([{"n": 1, "passed": 1}] * 10).estimate(1)
    change = pass_at_k_difference(failing, passing, 1)
    for found in (always, change, mean_pass_at_k(passing, 1)):
        assert (found.value, found.interval, found.sign) == (1.0, None, 0)


def test_no_problem_has_no_estimate() -> None:
    with pytest.raises(BadInput, match="there is no problem"):
        PassAtK([1]).from_rows([]).estimate(1)


def test_what_else_is_kept_of_a_problem_does_not_replace_its_counts() -> None:
    scored = PassAtK([1]).score(
        [{"task_id": "a"}], [["x", "y"]], lambda text, _: text == "x",
        extras_fn=lambda problem, texts: {"n": 9, "passed": 9, "note": "kept"},
    )  # fmt: skip
    assert scored.per_task == [{"task_id": "a", "n": 2, "passed": 1, "note": "kept"}]


def test_a_row_without_its_counts_is_named() -> None:
    with pytest.raises(BadInput, match="row 1: the key 'passed' is missing"):
        PassAtK((1,)).from_rows([{"n": 1, "passed": 1}, {"n": 1}])


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.5, "1", None])
def test_a_row_with_something_else_than_counts_is_named(value: object) -> None:
    with pytest.raises(BadInput, match=r"row 0: passed: .* is not a whole number"):
        PassAtK((1,)).from_rows([{"n": 2.0, "passed": value}])


def test_two_rows_of_one_problem_are_refused_not_taken_for_two_problems() -> None:
    rows = [{"task_id": "a", "n": 2, "passed": n} for n in (2, 0)]
    with pytest.raises(BadInput, match="row 1: task 'a' is in row 0 too; add up n and passed"):
        PassAtK([2]).from_rows(rows)
