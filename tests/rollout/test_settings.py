"""Rollout settings: what is refused before anything is played."""

from typing import Any

import pytest

from fieldkit.errors import BadInput
from rollout.settings import RolloutSettings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "rollout.group_size: expected a whole number of at least 2 and"),
        ({"tasks_per_step": 0}, "rollout.tasks_per_step"),
        ({"temperature": 0.0}, "rollout.temperature"),
        ({"temperature": float("nan")}, "rollout.temperature"),
        ({"max_turns": 0}, "rollout.max_turns"),
        ({"max_new_tokens": 0}, "rollout.max_new_tokens"),
        ({"episode_seconds": float("inf")}, "rollout.episode_seconds"),
        ({"max_model_len": 96}, "rollout.max_model_len: 96 must be 97 or more"),
        ({"concurrency": -1}, "rollout.concurrency"),
        ({"protocol": "literally"}, "did you mean 'literal'"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        RolloutSettings(**changes)


def test_sampling_is_neutral_but_for_the_temperature() -> None:
    sampling = RolloutSettings(temperature=0.7, max_new_tokens=50).sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.7, 50)
    assert (sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0)
