from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.eval import exact_match
from fieldkit.lineage import FailureLabel
from fieldkit.reward import Reward, RewardAdapter, Rollout, group_advantage
from fieldkit.training.advantages import group_advantages


def test_a_score_that_is_no_number_is_a_crash_and_no_plain_miss() -> None:
    found = RewardAdapter(lambda prediction, expected: math.nan).score(Rollout("x"))
    assert found.failure_class is FailureLabel.CRASH
    assert found.auxiliary["error"] == "ValueError: the score is nan, not a finite number"


@pytest.mark.parametrize("expected", [0, 0.0, False])
def test_an_expected_zero_is_an_answer_like_any_other(expected: float) -> None:
    said = {"prediction": str(expected), "expected": expected}
    assert RewardAdapter(exact_match).score(said).success
    assert not RewardAdapter(exact_match).score({**said, "prediction": ""}).success


def test_a_scorer_without_a_signature_gets_no_options() -> None:
    found = RewardAdapter(max, scorer_kwargs={"judge": 1}).score(Rollout("1", "2"))
    assert found.auxiliary == {"score": 2.0, "scorer": "max", "refusal": False}


def test_a_scorer_that_takes_anything_gets_every_option() -> None:
    def any_options(prediction: str, expected: str, **options: float) -> float:
        return options["weight"]

    assert (
        RewardAdapter(any_options, scorer_kwargs={"weight": 0.5}).score(Rollout("x")).scalar == 0.5
    )


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=8))
def test_the_trainers_advantages_differ_only_by_the_deviation(scores: list[float]) -> None:
    found = group_advantage([Reward(False, FailureLabel.KEEP, {"score": s}) for s in scores])
    if statistics.pstdev(scores) == 0:
        assert found == [0.0] * len(scores)
        return
    factor = math.sqrt(len(scores) / (len(scores) - 1))
    ours = [a * factor for a in group_advantages(scores)]
    assert found == pytest.approx(ours, rel=2e-3)


def test_equal_scores_give_zeros_in_either_form() -> None:
    alike = RewardAdapter(lambda prediction, expected: 0.1).score_group(
        [{"prediction": "a", "expected": "b"}] * 3
    )
    for normalize_std in (True, False):
        assert group_advantage(alike, normalize_std=normalize_std) == [0.0] * 3
