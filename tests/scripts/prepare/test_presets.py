"""A preset is one file: the run.toml that `grpo new` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.tasks import decode_tasks
from scripts.base.checkout import ROOT
from scripts.prepare.presets import new_run, presets
from scripts.run.config import read_config
from scripts.run.folder import RunFolder


@pytest.mark.parametrize("preset", presets())
def test_a_preset_is_a_sound_run(tmp_path: Path, preset: str) -> None:
    folder = RunFolder(tmp_path / "night")
    new_run(folder, preset)
    config = read_config(folder.config)
    assert config.rollout.group_size > 1  # a group of one has nothing to compare
    assert all((ROOT / file).is_file() for file in (config.data.pool, config.data.heldout))


def test_the_long_night_is_evaluated_as_the_default_one(tmp_path: Path) -> None:
    """So `grpo compare` takes both, and the warm start's arm is played once."""
    for preset in ("smol", "smol-long"):
        new_run(RunFolder(tmp_path / preset), preset)
    short, long = (read_config(RunFolder(tmp_path / p).config) for p in ("smol", "smol-long"))
    assert long.model == short.model
    assert long.data.heldout == short.data.heldout
    limits = [c.rollout.at(c.eval.temperature).sampling for c in (short, long)]
    assert limits[0] == limits[1]
    assert long.rollout.max_turns == short.rollout.max_turns


@pytest.mark.parametrize("preset", ["smol", "smol-long", "spark"])
def test_a_preset_on_the_shipped_tasks_has_more_than_a_model_learns_by_heart(
    tmp_path: Path, preset: str
) -> None:
    folder = RunFolder(tmp_path / "night")
    new_run(folder, preset)
    config = read_config(folder.config)
    assert len(decode_tasks(ROOT / config.data.pool)) == 850


def test_the_spark_preset_has_the_documents_settings(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "night")
    new_run(folder, "spark")
    config = read_config(folder.config)
    assert config.model.path == "Qwen/Qwen2.5-7B-Instruct"
    assert (config.rollout.tasks_per_step, config.rollout.group_size) == (8, 4)
    assert (config.rollout.temperature, config.trainer.temperature) == (0.8, 0.8)
    assert (config.trainer.lr, config.trainer.kl_coef) == (5e-6, 0.05)
    assert (config.reward.turn_penalty, config.run.eval_every) == (0.2, 25)
    assert config.engine.lifecycle == "auto"


def test_a_run_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "night")
    new_run(folder, "smol")
    with pytest.raises(BadInput, match="exists already"):
        new_run(folder, "smol")
    with pytest.raises(BadInput, match="known: smol, smol-long, spark"):
        new_run(RunFolder(tmp_path / "other"), "huge")


def test_a_preset_is_one_file_in_a_folder(tmp_path: Path) -> None:
    """From outside the package: it is listed, and a run is made with it."""
    mine = tmp_path / "presets"
    mine.mkdir()
    (mine / "short.toml").write_text("[run]\nsteps = 3  # an evening\n")
    folder = RunFolder(tmp_path / "night")
    new_run(folder, "short", mine)
    assert folder.config.read_text() == "[run]\nsteps = 3  # an evening\n"
    assert read_config(folder.config).run.steps == 3
    with pytest.raises(BadInput, match=r"--preset smol: unknown; known: short$"):
        new_run(RunFolder(tmp_path / "other"), "smol", mine)
