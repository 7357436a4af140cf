"""`grpo new --from RUN`: another run's settings, from the adapter that it made."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file, write_json
from scripts.base.checkout import ROOT
from scripts.prepare.from_run import grown_elsewhere, text_from
from scripts.prepare.presets import make_run, new_run
from scripts.run.assignments import assigned, parse
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.run_pool import GROWN
from tests.scripts.cli.in_process import grpo


@pytest.fixture
def night(tmp_path: Path) -> RunFolder:
    """A run of two steps, of which the last has an adapter."""
    folder = RunFolder(tmp_path / "night")
    new_run(folder, "smol-long", assignments=["run.seed=4", "rollout.tasks_per_step=16"])
    for n in range(3):
        folder.step(n).mkdir()
        folder.summary(n).write_text("{}")
    shutil.copytree(ROOT / "adapters/smol-warm", folder.adapter(2))
    return folder


def test_it_starts_from_the_newest_adapter_with_the_settings_and_the_next_seed(
    night: RunFolder, tmp_path: Path
) -> None:
    last = RunFolder(tmp_path / "last")
    make_run(last, text_from(night, assignments=["rollout.temperature=0.7"]))
    before, config = read_config(night.config), read_config(last.config)
    assert config.model.adapter == str(night.adapter(2))
    assert (config.run.seed, config.rollout.temperature) == (5, 0.7)
    assert config.rollout.tasks_per_step == 16
    assert config.reward == before.reward


def test_it_goes_on_with_the_learning_rate_of_that_step(night: RunFolder, tmp_path: Path) -> None:
    text = night.config.read_text()
    night.config.write_text(assigned(text, parse(["trainer.decay_after=1"]), "run.toml"))
    make_run(RunFolder(tmp_path / "last"), text_from(night))
    config = read_config(RunFolder(tmp_path / "last").config)
    assert config.trainer.lr == pytest.approx(4.0 / 2**0.5, rel=1e-3)
    assert config.trainer.at_step(100).lr == config.trainer.lr, "it does not fall a second time"


def test_a_seed_that_is_set_stays(night: RunFolder, tmp_path: Path) -> None:
    make_run(RunFolder(tmp_path / "last"), text_from(night, assignments=["run.seed=9"]))
    assert read_config(RunFolder(tmp_path / "last").config).run.seed == 9


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (1, r"step 1 has no adapter here; --step takes 2$"),
        (3, r"--step 3: .*night: its steps are 1 to 2; `grpo run .*night` trains further ones"),
    ],
)
def test_a_step_without_an_adapter_is_bad_input(night: RunFolder, step: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        text_from(night, step)


def test_a_run_that_trained_nothing_says_what_trains_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "fresh")
    new_run(folder, "smol")
    with pytest.raises(BadInput, match=r"no step of it is trained yet; `grpo run .*fresh`"):
        text_from(folder)


def test_a_committed_run_has_no_adapters_to_start_from(tmp_path: Path) -> None:
    ended = grpo("new", tmp_path / "again", "--from", "long-3")
    assert ended.code == 2
    assert "step 104 has no adapter here" in ended.error
    assert "run long-3-again` play it again" in ended.error
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "x", "--preset", "smol"), "--preset: not with --from"),
        (("--step", "2"), "--step: only with --from"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    ended = grpo("new", tmp_path / "run", *words)
    assert ended.code == 2
    assert said in ended.error


def test_the_command_says_what_starts_it(night: RunFolder, tmp_path: Path) -> None:
    ended = grpo("new", tmp_path / "last", "--from", night.path)
    assert ended.code == 0, ended.error
    assert f"grpo run {tmp_path / 'last'}" in ended.out + ended.error


def test_tasks_that_joined_the_pool_are_named_with_what_takes_them_along(
    night: RunFolder, tmp_path: Path
) -> None:
    last = RunFolder(tmp_path / "last")
    make_run(last, text_from(night))
    assert grown_elsewhere(night, last) is None
    grown = night.path / "grown-001.jsonl"
    lines = (ROOT / "data/development.jsonl").read_bytes().splitlines(keepends=True)[:3]
    grown.write_bytes(b"".join(lines))
    entry = {"sha256": sha256_file(grown), "step": 2}
    write_json(night.manifest, {"schema": 1, "data": {GROWN: {grown.name: entry}}})
    said = grown_elsewhere(night, last)
    assert said is not None
    assert said.startswith(f"the tasks that joined the pool of {night.typed} (3) are not in")
    cat, run = re.findall(r"`([^`]+)`", said)
    subprocess.run(cat, shell=True, check=True)
    pool = ROOT / "data/reserve.jsonl"
    assert (last.path / "pool.jsonl").read_bytes() == pool.read_bytes() + grown.read_bytes()
    assert run.startswith(f"grpo run {last.typed} --set data.pool=")
    other = RunFolder(tmp_path / "other")
    make_run(other, text_from(night, assignments=["data.pool=data/pool.jsonl"]))
    assert grown_elsewhere(night, other) is None
