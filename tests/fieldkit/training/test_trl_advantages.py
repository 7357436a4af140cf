"""Advantages equal those that TRL's trainers compute from the same rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from fieldkit.training.advantages import group_advantages, leave_one_out
from tests.tiny_trl import BATCH, make_trainer

pytestmark = pytest.mark.trl

REWARDS = (0.05, 0.633, 0.1, 0.55)
assert len(REWARDS) == BATCH


def theirs(kind: Literal["GRPO", "RLOO"], folder: Path, **config: Any) -> list[float]:
    """TRL's advantages of one group: its model answers, and the answers have `REWARDS`."""
    trainer = make_trainer(
        kind,
        folder,
        reward_funcs=lambda completions, **row: list(REWARDS),
        num_generations=BATCH,
        max_completion_length=3,
        **config,
    )
    out = trainer._generate_and_score_completions([{"prompt": "a b"} for _ in REWARDS])
    found: list[float] = out["advantages"].tolist()
    return found


def test_a_group_by_its_standard_deviation(tmp_path: Path) -> None:
    assert group_advantages(REWARDS, "std") == pytest.approx(theirs("GRPO", tmp_path), rel=1e-5)


def test_a_group_by_its_mean_alone(tmp_path: Path) -> None:
    found = theirs("GRPO", tmp_path, scale_rewards="none")
    assert group_advantages(REWARDS, "mean") == pytest.approx(found, rel=1e-5)


def test_the_mean_of_the_others(tmp_path: Path) -> None:
    assert leave_one_out(REWARDS) == pytest.approx(theirs("RLOO", tmp_path), rel=1e-5)
