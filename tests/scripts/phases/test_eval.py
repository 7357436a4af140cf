"""The eval phase on the scripted engine: the arms at a run's start."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fieldkit.files.journal import Journal
from rollout.arm import read_eval
from rollout.engine.serve import stop_engine
from scripts.evidence.findings import read_findings
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from tests.chaos.night import GRPO_RUN, SITE
from tests.tiny_policy import write_run

ENV = {**os.environ, "PYTHONPATH": str(SITE)}


def grpo(*words: str) -> str:
    """Run a command of grpo that succeeds; what it said."""
    done = subprocess.run([*GRPO_RUN[:-1], *words], env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def begun(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose start is evaluated: three held-out tasks at the training temperature, of four."""
    path = tmp_path_factory.mktemp("begun") / "night"
    folder = RunFolder(write_run(path, *policy, eval={"tasks_at_training_temperature": 3}))
    grpo("start", str(folder.path))
    grpo("eval", str(folder.path))
    stop_engine(folder.path)
    return folder


def test_an_adapter_also_plays_a_few_tasks_at_the_training_temperature(begun: RunFolder) -> None:
    (played,) = begun.training_evals.glob("*/eval.json")
    arm = read_eval(played.parent)
    assert (arm.arm, arm.temperature, arm.n_tasks) == ("warm start at T = 1", 1.0, 3)
    journal = Journal(begun.journal).read()
    wrote = {path for e in journal if e.event == "arm_played" for path in e.data["wrote"]}
    assert begun.relative(played.parent / "trajectories.jsonl") in wrote


def test_it_is_no_arm_of_the_tables(begun: RunFolder) -> None:
    found = read_findings(begun, read_config(begun.config))
    assert not found.gaps
    arms = [a.name for a in found.require_evidence().arms]
    assert arms == ["do-nothing", "oracle", "base", "warm start"]


def test_a_kill_between_the_two_leaves_both_to_be_finished(
    begun: RunFolder, tmp_path: Path
) -> None:
    """The few tasks come first, so an arm that is not there is due with what belongs to it."""
    cut = RunFolder(shutil.copytree(begun.path, tmp_path / "night"))
    (warm,) = [p for p in cut.evals.glob("*/eval.json") if read_eval(p.parent).arm == "warm start"]
    shutil.rmtree(warm.parent)
    said = grpo("eval", str(cut.path))
    stop_engine(cut.path)
    assert "1 arm(s) evaluated" in said
    assert (warm.parent / "eval.json").is_file()
    assert len([*cut.training_evals.glob("*/eval.json")]) == 1
