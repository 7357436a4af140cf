"""The model against a step of somebody else's."""

from __future__ import annotations

import pytest

from scripts.prepare.capacity.box import named_box
from scripts.prepare.capacity.fitting import fit
from scripts.prepare.capacity.measured import default_night, measured_runs
from scripts.prepare.capacity.published import checks, tokens_of_a_turn, told

RUNS = measured_runs()
FITTED = fit(RUNS).efficiency
FOUND = checks(FITTED, default_night(RUNS).steps[0].work)


def test_tokens_of_a_turn_by_hand() -> None:
    """28.3 s / 12 - 14 ms a turn; 14.14 GB at 60 % of 273 GB/s, and 18 ms."""
    iteration = 2 * (6_525_288_448 + 544_997_376) / (0.6 * 273e9) + 0.018
    assert tokens_of_a_turn(FITTED) == pytest.approx((28.3 / 12 - 0.014) / iteration)


def test_a_restart_is_a_start_and_the_weights_at_the_articles_speed() -> None:
    box = named_box("spark")
    weights = 2 * 7_615_283_200 / (box.disk_gb_s * 1e9)
    assert weights == pytest.approx(124, rel=0.01)
    assert FOUND["restart"].predicted == pytest.approx(box.start_seconds + weights)


def test_a_step_and_its_passes_are_predicted_within_a_third() -> None:
    """docs/SCALE.md says by how much; a model that gets better or worse has to say so there."""
    assert abs(FOUND["step"].off) < 1 / 3
    assert abs(FOUND["passes"].off) < 1 / 3  # with the shares that an H100 reached


def test_turns_alone_say_nothing_of_the_efficiencies() -> None:
    assert FOUND["trained"].predicted == pytest.approx(5 * 28.3 / 12)


def test_the_sentence_tells_what_was_measured_and_what_is_predicted() -> None:
    said = told(FITTED)
    assert "took 900 s" in said
    assert f"predicted as {FOUND['step'].predicted:.0f};" in said
