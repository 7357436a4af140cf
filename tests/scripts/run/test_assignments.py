"""`--set` writes into run.toml, or refuses and leaves it as it was."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fieldkit.errors import BadInput, NotOwner
from scripts.prepare.presets import SHIPPED
from scripts.run.assignments import assign, assigned, parse
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from tests.scripts.typed import BAD_INPUT, grpo

SMOL = (SHIPPED / "smol.toml").read_text()


def test_values_are_toml_and_anything_else_is_a_text() -> None:
    words = ["rollout.temperature=0.8", "run.steps=auto", "run.wandb=true", "model.path=/m/a b"]
    assert list(parse(words).values()) == [0.8, "auto", True, "/m/a b"]


@pytest.mark.parametrize("preset", sorted(SHIPPED.glob("*.toml")), ids=lambda p: p.stem)
def test_a_value_takes_its_place_and_every_other_line_stays(preset: Path) -> None:
    text = preset.read_text(encoding="utf-8")
    changed = assigned(text, {"rollout.temperature": 0.8}, "run.toml")
    assert tomllib.loads(changed)["rollout"]["temperature"] == 0.8
    kept = [line for line in text.splitlines() if not line.startswith("temperature")]
    assert [line for line in kept if line not in changed.splitlines()] == []


def test_the_comment_of_a_value_goes_with_it_and_stays_where_the_value_is_the_same() -> None:
    values = {"reward.turn_penalty": 0.5, "eval.tasks": 0, "run.minutes": 27.0, "trainer.lr": 4}
    changed = assigned(SMOL, values, "run.toml").splitlines()
    assert {"turn_penalty = 0.5", "tasks = 0"} < {*changed}
    kept = [line for line in SMOL.splitlines() if line.startswith(("minutes =", "lr ="))]
    assert {*kept} < {*changed}


def test_a_value_that_only_equals_the_one_in_the_file_is_still_checked() -> None:
    with pytest.raises(BadInput, match=r"run\.preflight: expected true or false"):
        assigned("[run]\npreflight = true\n", {"run.preflight": 1}, "run.toml")


def test_a_fault_of_the_file_is_not_laid_on_the_assignment() -> None:
    hot = '[rollout]\ntemperature = "hot"\n'
    with pytest.raises(BadInput, match=r"^run\.toml: rollout\.temperature: expected"):
        assigned(hot, {"run.steps": 3}, "run.toml")
    with pytest.raises(BadInput, match=r"^--set .*: run\.steps: expected"):
        assigned(hot, {"rollout.temperature": 0.8, "run.steps": -1}, "run.toml")
    assert "temperature = 0.8" in assigned(hot, {"rollout.temperature": 0.8}, "run.toml")


def test_a_key_that_is_not_there_yet_goes_to_its_table() -> None:
    changed = assigned(SMOL, {"engine.port": 8123}, "run.toml")
    assert tomllib.loads(changed)["engine"]["port"] == 8123
    assert assigned("", {"engine.port": 8123}, "run.toml").strip() == "[engine]\nport = 8123"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("rollout.temprature=0.8", "did you mean 'rollout.temperature'?"),
        ("rollout.temperature", "write table.key=value"),
        ("rollout.temperature=hot", "rollout.temperature: expected"),
        ("rollout.temperature=nan", "found nan"),
        ("rollout.temperature=" + "[" * 5000, "rollout.temperature: expected"),
        ("run.steps=-1", "run.steps: expected"),
        ("rollout.temperature=1979-05-27", "rollout.temperature: expected"),
        ("rollout.temperature=[1979-05-27]", "rollout.temperature: expected"),
        ("run.steps=07:00:00", "run.steps: expected"),
        ("sandbox.kind=none", "type `--sandbox none` each time"),
        ("=1", "unknown key ''"),
    ],
)
def test_a_wrong_assignment_makes_no_run(word: str, says: str, tmp_path: Path) -> None:
    done = grpo("new", f"{tmp_path}/night", "--set", word)
    assert done.returncode == BAD_INPUT
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "night").exists()


def test_new_and_run_take_settings(tmp_path: Path) -> None:
    night = tmp_path / "night"
    done = grpo("new", night, "--set", "rollout.temperature=0.8", "--set", "run.steps=3")
    assert done.returncode == 0, done.stderr
    config = read_config(night / "run.toml")
    assert (config.rollout.temperature, config.run.steps) == (0.8, 3)
    assert config.trainer.temperature == 0.8


def test_a_file_in_a_form_of_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("rollout = {temperature = 0.7}\n")
    with pytest.raises(BadInput, match=r"too free for --set; write rollout\.temperature"):
        assign(RunFolder(tmp_path), ["rollout.temperature=0.8"])
    assert (tmp_path / "run.toml").read_text() == "rollout = {temperature = 0.7}\n"


def test_a_run_that_a_loop_works_on_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SMOL)
    with run_lock(tmp_path / "lock"):
        done = grpo("run", tmp_path, "--set", "run.steps=3")
    assert done.returncode == NotOwner.exit_code
    assert (tmp_path / "run.toml").read_text() == SMOL
