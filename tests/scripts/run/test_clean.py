"""Old checkpoints go, and the run neither notices nor loses anything that a page shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fieldkit.errors import NotOwner
from fieldkit.files.journal import Journal
from fieldkit.training.adapter import adapter_sha
from scripts.run.clean import clean
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.run.next_phase import sampled_from
from tests.chaos.night import GRPO_RUN, SITE, step_shas
from tests.scripts.cli import in_process
from tests.scripts.evals import arm, write_eval
from tests.scripts.made_night import make_night, tasks
from tests.tiny_policy import write_run

ENV = {**os.environ, "PYTHONPATH": str(SITE)}
STEPS = 8


@pytest.fixture
def night(tmp_path: Path) -> RunFolder:
    """A finished night of 8 steps in which step 3 passed most and step 8 is the newest."""
    on = tasks(24)
    made = make_night(tmp_path, n_steps=STEPS, held_out=on)
    best = arm("sha-3", on, passes=20, turns=3, stops=24)
    write_eval(made.folder.evals, best, on, arm="step 3")
    for n in range(STEPS + 1):
        for part in (made.folder.adapter(n), made.folder.trainer_state(n)):
            part.mkdir()
            (part / "weights").write_bytes(bytes(100_000))
    return made.folder


def checkpoints(night: RunFolder) -> list[int]:
    return [n for n in range(STEPS + 1) if night.adapter(n).is_dir()]


def test_the_first_the_best_and_the_last_two_stay(night: RunFolder) -> None:
    figures = {p: p.read_bytes() for p in night.path.rglob("*.json*") if p.is_file()}
    done = clean(night)
    assert checkpoints(night) == [0, 3, 7, 8]
    assert done.kept == (0, 3, 7, 8)
    assert all(night.trainer_state(n).is_dir() for n in done.kept)
    assert done.freed >= 2 * 5 * 100_000
    assert len(done.removed) == 2 * 5
    assert all(p.read_bytes() == before for p, before in figures.items())
    (entry,) = Journal(night.journal).read()
    assert entry.data["removed"][0] == "step-001/adapter"


def test_with_an_overlap_the_adapter_that_sampled_the_newest_bundle_stays(night: RunFolder) -> None:
    manifest = json.loads(night.manifest.read_text())
    manifest["config"]["run"]["overlap"] = 1
    night.manifest.write_text(json.dumps(manifest))
    assert clean(night).kept == (0, 3, sampled_from(STEPS, 1), 7, 8)
    assert checkpoints(night) == [0, 3, 6, 7, 8]


def test_a_dry_run_says_the_same_and_removes_nothing(night: RunFolder) -> None:
    would = clean(night, dry_run=True)
    assert checkpoints(night) == list(range(STEPS + 1))
    assert not night.journal.exists()
    assert clean(night) == would


def test_a_cleaning_that_was_killed_is_finished_by_the_next(night: RunFolder) -> None:
    shutil.rmtree(night.adapter(1))
    clean(night)
    assert checkpoints(night) == [0, 3, 7, 8]
    assert clean(night).removed == ()


def test_on_a_full_disk_room_is_made_before_anything_is_written(
    night: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[int]] = []
    monkeypatch.setattr(Journal, "append", lambda *_, **__: left.append(checkpoints(night)))
    clean(night)
    assert left == [[0, 3, 7, 8]]


def test_a_run_that_was_not_started_has_nothing_to_clean(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    assert clean(RunFolder(tmp_path)).removed == ()


def test_a_run_that_a_loop_works_on_is_left_alone(night: RunFolder) -> None:
    with run_lock(night.lock), pytest.raises(NotOwner, match="another loop owns"):
        clean(night)
    assert checkpoints(night) == list(range(STEPS + 1))


def grpo(*words: str, exit_code: int = 0) -> str:
    done = subprocess.run([*GRPO_RUN[:-1], *words], env=ENV, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == exit_code, said
    return said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cleaned_run_goes_on_and_makes_a_damaged_step_again(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    night = RunFolder(write_run(tmp_path / "night", *policy))
    grpo("run", str(night.path), "--steps", "3")
    before = step_shas(night.path)
    said = grpo("clean", str(night.path))
    assert "step-001/adapter" in said
    assert "kept: step-000, step-002, step-003" in said
    weights = night.adapter(3) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    said = grpo("run", str(night.path), "--steps", "4")
    assert "is not as it was written" in said
    after = step_shas(night.path)
    assert after[: len(before)] == before
    assert adapter_sha(night.adapter(3)) == before[-1]
    assert "`grpo clean` removes checkpoints" in grpo(
        "eval", str(night.path), "--step", "1", exit_code=2
    )


def test_a_dry_run_that_is_typed_removes_nothing(night: RunFolder) -> None:
    ended = in_process.grpo("clean", night.path, "--dry-run")
    assert "would free" in ended.out
    assert checkpoints(night) == list(range(STEPS + 1))
