"""What holds by chance of the sampling is told from what always holds and what never does."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.eval.task_noise import Held, task_noise


def grade(*held: bool) -> Grade:
    return Grade(tuple(AssertionResult("file_exists", f"f{i}", h) for i, h in enumerate(held)))


PASS, FAIL = grade(True, True), grade(True, False)

FOUR = {
    "sure": [PASS] * 4,
    "hopeless": [FAIL] * 4,
    "even": [PASS, FAIL, FAIL, PASS],
    "rare": [FAIL, FAIL, FAIL, PASS],
}


def test_a_ceiling_is_told_from_a_failure_task_by_task() -> None:
    found = task_noise(FOUR)
    assert [t.task_id for t in found.of(Held.ALWAYS)] == ["sure"]
    assert [t.task_id for t in found.of(Held.NEVER)] == ["hopeless"]
    assert [(t.task_id, t.passed) for t in found.of(Held.BY_CHANCE)] == [("even", 2), ("rare", 1)]


def test_assertions_are_counted_over_the_attempts_of_their_task() -> None:
    found = task_noise(FOUR)
    even = found.of(Held.BY_CHANCE)[0]
    assert [(a.path, a.count, a.held) for a in even.assertions] == [
        ("f0", 4, Held.ALWAYS),
        ("f1", 2, Held.BY_CHANCE),
    ]
    counts = {held: found.assertions(held) for held in Held}
    assert counts == {Held.ALWAYS: 5, Held.NEVER: 1, Held.BY_CHANCE: 2}


def test_the_sums_are_those_worked_out_by_hand() -> None:
    found = task_noise(FOUR)
    assert found.n == 4
    assert found.expected == 1 + 0 + 0.5 + 0.25
    assert found.sd == pytest.approx(math.sqrt((0.25 + 0.1875) * 4 / 3))
    assert found.ceiling.value == 0.75
    assert found.ceiling.interval is not None
    assert found.unseen == pytest.approx(0.4899, abs=1e-4)


def test_a_task_that_was_attempted_more_often_counts_by_its_own_attempts() -> None:
    found = task_noise({"four": [PASS, FAIL, FAIL, FAIL], "two": [PASS, FAIL]})
    assert found.n == 2
    assert found.expected == 0.25 + 0.5
    assert found.sd == pytest.approx(math.sqrt(0.1875 * 4 / 3 + 0.25 * 2))
    assert found.ceiling.value == pytest.approx((0.5 + 1) / 2)


def test_the_variance_of_the_sampling_is_estimated_without_bias() -> None:
    draw, rates = random.Random(1), [0.1, 0.5, 0.9, 1.0]
    variances = []
    for _ in range(4000):
        played = {
            str(i): [PASS if draw.random() < p else FAIL for _ in range(3)]
            for i, p in enumerate(rates)
        }
        variances.append(task_noise(played).sd ** 2)
    true = sum(p * (1 - p) for p in rates)
    assert statistics.fmean(variances) == pytest.approx(true, rel=0.03)


@pytest.mark.parametrize(
    ("attempts", "says"),
    [
        ({}, "there is no task"),
        ({"a": [PASS] * 2, "b": [PASS]}, "task b: noise needs two attempts, there are 1"),
        ({"a": [PASS, grade(True)]}, "task a: its attempts were graded by different assertions"),
    ],
)
def test_attempts_that_cannot_be_counted_are_refused(
    attempts: dict[str, list[Grade]], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        task_noise(attempts)
