"""`grpo eval RUN --step N`: any step's adapter on the held-out tasks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fieldkit.files.atomic import read_json
from scripts.run.folder import RunFolder
from tests.chaos.night import GRPO_RUN, SITE
from tests.tiny_policy import write_run

ENV = {**os.environ, "PYTHONPATH": str(SITE)}


def grpo(*words: str, exit_code: int = 0) -> str:
    done = subprocess.run([*GRPO_RUN[:-1], *words], env=ENV, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == exit_code, said
    return said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_in_the_middle_is_evaluated_once_and_can_be_compared(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    night = RunFolder(write_run(tmp_path / "night", *policy))
    run = str(night.path)
    grpo("run", run, "--steps", "2", "--keep-engine")
    unplayed = grpo("compare", run, f"{run}@1", exit_code=2)
    assert f"`grpo eval {run} --step 1` plays it" in unplayed
    try:
        assert "step 1: passed" in grpo("eval", run, "--step", "1")
        played = {read_json(p)["arm"] for p in night.evals.glob("*/eval.json")}
        assert {"step 1", "step 2", "warm start"} <= played
        assert "step 1 is evaluated already" in grpo("eval", run, "--step", "1")
        assert "night@1" in grpo("compare", run, f"{run}@1")
        said = grpo("eval", run, "--step", "9", exit_code=2)
        assert "has finished steps 0 to 2" in said
        assert f"`grpo eval {run} --step 2`" in said
    finally:
        grpo("stop", run)
