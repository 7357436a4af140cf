"""What a script written for fieldkit.reward 0.34.1 relies on. Passes on that package and ours."""

from __future__ import annotations

from typing import Any

import pytest

from fieldkit.eval import contains, exact_match, numeric_match
from fieldkit.lineage import FailureLabel
from fieldkit.reward import Reward, RewardAdapter, RewardError, group_advantage


def test_a_pass_a_miss_and_a_crash_have_their_labels() -> None:
    def broken(prediction: str, expected: str) -> float:
        raise RuntimeError("no judge")

    passed = RewardAdapter(exact_match).score({"prediction": "Yes", "expected": "yes"})
    missed = RewardAdapter(contains).score({"prediction": "I don't know", "expected": "Paris"})
    crashed = RewardAdapter(broken).score({"prediction": "x"})
    labels = [r.failure_class for r in (passed, missed, crashed)]
    assert labels == [FailureLabel.KEEP, FailureLabel.DISCARD, FailureLabel.CRASH]
    assert [r.scalar for r in (passed, missed, crashed)] == [1.0, 0.0, 0.0]
    assert (passed.auxiliary["refusal"], missed.auxiliary["refusal"]) == (False, True)
    assert crashed.auxiliary["error"] == "RuntimeError: no judge"
    assert passed.to_dict() == {
        **{"success": True, "failure_class": "keep", "scalar": 1.0},
        **{"auxiliary": {"score": 1.0, "scorer": "exact_match", "refusal": False}},
    }


def test_a_scorer_gets_the_options_it_takes() -> None:
    def partly(prediction: str, expected: str, *, rubric: Any = None) -> float:
        return 0.5 if rubric else 0.25

    options = {"rel_tolerance": 0.5, "judge": None}
    near = {"prediction": "60", "expected": "100", "rubric": {"hint": 1}}
    assert RewardAdapter(numeric_match, scorer_kwargs=options).score(near).success
    reward = RewardAdapter(partly, pass_threshold=0.5, scorer_kwargs=options).score(near)
    assert (reward.scalar, reward.success, reward.is_informational) == (0.5, True, True)


def test_the_callers_mistakes_are_errors() -> None:
    with pytest.raises(RewardError):
        RewardAdapter("exact_match")  # type: ignore[arg-type]
    with pytest.raises(RewardError):
        RewardAdapter(exact_match).score({"expected": "yes"})


def rewards(*scores: float) -> list[Reward]:
    return [Reward(s >= 1, FailureLabel.KEEP, {"score": s}) for s in scores]


def test_advantages_are_centred_and_divided_by_the_spread() -> None:
    assert group_advantage(rewards(0, 1)) == pytest.approx([-1.0, 1.0])
    assert group_advantage(rewards(0, 1), normalize_std=False) == [-0.5, 0.5]
    assert group_advantage(rewards(0, 0, 0, 1)) == pytest.approx([-0.57735] * 3 + [1.73205])
    assert group_advantage(rewards(0.3, 0.3, 0.3)) == [0.0, 0.0, 0.0]
    assert group_advantage(rewards(0.3)) == [0.0]
    assert group_advantage([]) == []


def test_a_reward_without_a_score_is_one_or_nothing() -> None:
    assert Reward(True, FailureLabel.KEEP).scalar == 1.0
    assert Reward(False, FailureLabel.DISCARD).scalar == 0.0


def test_a_group_is_scored_in_its_order() -> None:
    class Sampled:
        def __init__(self, prediction: str) -> None:
            self.prediction = prediction
            self.expected = "b"

    found = RewardAdapter(exact_match).score_group([Sampled(c) for c in "abc"])
    assert [r.scalar for r in found] == [0.0, 1.0, 0.0]
