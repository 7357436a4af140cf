"""A step is trained with the dtype that was measured, and without a KL that is small."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.phases.training.step_settings import settings_of_step
from tests.scripts.phases.training.conftest import context


@pytest.mark.parametrize(
    ("kls", "coefficient"),
    [
        ([], 0.02),
        ([0.5], 0.02),
        ([0.5] * 9 + [0.05], 0.0),
        ([0.5] * 9 + [0.05, None], 0.0),
        ([0.5] * 9 + [0.05, None, None], 0.02),
        ([0.5] * 9 + [0.05, None, None, 0.05], 0.0),
        ([0.05] * 9 + [None, None, 0.2], 0.02),
    ],
)
def test_a_small_kl_is_computed_at_every_third_step_only(
    kls: list[float | None], coefficient: float, tmp_path: Path
) -> None:
    ctx = context(tmp_path, 0.1, kls)
    assert settings_of_step(ctx, len(kls) + 1).kl_coef == coefficient


def test_the_kl_of_a_step_that_begins_at_the_reference_says_nothing_of_later_ones(
    tmp_path: Path,
) -> None:
    ctx = context(tmp_path, 0.1, [0.0, 0.0], at_reference=2)  # the first had no signal
    assert settings_of_step(ctx, 3).kl_coef == ctx.config.trainer.kl_coef
    ctx = context(tmp_path / "other", 0.1, [0.0, 0.01], at_reference=1)
    assert settings_of_step(ctx, 3).kl_coef == 0.0


def test_a_kl_that_can_have_grown_beyond_the_bound_since_is_computed(tmp_path: Path) -> None:
    """One step from the reference it was 0.02, so two steps away it is 0.08 at most, and three
    0.18."""
    ctx = context(tmp_path, 0.1, [0.0, 0.02], at_reference=1)
    assert settings_of_step(ctx, 3).kl_coef == 0.0
    ctx = context(tmp_path / "later", 0.1, [0.0, 0.02, None], at_reference=1)
    assert settings_of_step(ctx, 4).kl_coef == ctx.config.trainer.kl_coef


def test_by_default_it_is_computed_at_every_step(tmp_path: Path) -> None:
    ctx = context(tmp_path, 0.0, [0.0, 0.0])
    assert settings_of_step(ctx, 3).kl_coef == ctx.config.trainer.kl_coef


def test_the_dtype_that_was_measured_stays(tmp_path: Path) -> None:
    assert settings_of_step(context(tmp_path, 0.0, [0.1]), 2).dtype == "bf16"
    assert settings_of_step(context(tmp_path / "other", 0.0, []), 1).dtype == "auto"
