from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread

from fieldkit.errors import BadInput
from scripts.report.curve_png import write_curve
from tests.scripts.evals import step
from tests.scripts.evidence.test_milestones import night

LARGEST_BYTES = 150_000


def test_the_picture_is_small_and_has_something_on_it(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    write_curve(path, night(), "first night")
    pixels = imread(path)
    assert path.stat().st_size < LARGEST_BYTES
    assert pixels.shape[:2] == (840, 900)
    assert pixels[..., :3].std() > 0.05


def test_a_long_night_still_fits(tmp_path: Path) -> None:
    steps = [
        step(i, "a", stop_rate=(i % 7) / 7, turns=3 + i % 5, reward=(i % 3) / 3, kl=i * 1e-4)
        for i in range(1, 300)
    ]
    write_curve(tmp_path / "curve.png", steps, "three hundred steps")
    assert (tmp_path / "curve.png").stat().st_size < LARGEST_BYTES


def test_the_same_steps_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_curve(tmp_path / name, night(), "first night")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_night_without_a_step_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no step"):
        write_curve(tmp_path / "curve.png", [step(0, "a")], "first night")
    assert not (tmp_path / "curve.png").exists()
