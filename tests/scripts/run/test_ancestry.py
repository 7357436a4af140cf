"""A run that starts from a run is a row below it, once for each adapter that was evaluated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.lineage import FailureLabel, LineageStore
from scripts.run.ancestry import FOLDER, Made, record_run, record_trial
from scripts.run.folder import RunFolder
from tests.scripts.made_night import make_night


@pytest.fixture
def child(tmp_path: Path) -> RunFolder:
    """Two nights side by side, the second begun from the first one's second step."""
    night = make_night(tmp_path, n_steps=2).folder
    path = Path(shutil.copytree(night.path, tmp_path / "again"))
    folder = RunFolder(path)
    manifest = json.loads(folder.manifest.read_text())
    manifest["config"]["model"]["adapter"] = str(night.adapter(2))
    manifest["config"]["rollout"]["temperature"] = 0.9
    folder.manifest.write_text(json.dumps(manifest))
    return folder


def test_a_run_that_starts_from_a_run_stands_below_it_with_its_outcome(child: RunFolder) -> None:
    record_run(child)
    store = LineageStore(child.path.parent / FOLDER, lower_is_better=False)
    first, second = store.all_trials()
    assert (first.exp_id, first.parent_exp, first.status) == ("night", "", FailureLabel.BASELINE)
    assert (second.exp_id, second.parent_exp, second.status) == ("again", "night", "keep")
    assert "rollout.temperature=0.9" in second.hypothesis
    notes = json.loads(second.notes)
    assert notes["adapter_sha"] == "sha-2"
    assert notes["settings"]["rollout.temperature"] == 0.9
    assert set(notes["data"]) == {"pool", "heldout"}
    assert store.tree().splitlines()[1].startswith("└─ again keep")


def test_tasks_that_joined_the_pool_are_told_with_their_hash(child: RunFolder) -> None:
    manifest = json.loads(child.manifest.read_text())
    manifest["data"]["grown"] = {"grown-001.jsonl": {"sha256": "0" * 64, "n": 42, "step": 1}}
    child.manifest.write_text(json.dumps(manifest))
    record_run(child)
    *_, newest = LineageStore(child.path.parent / FOLDER).all_trials()
    assert json.loads(newest.notes)["data"]["grown-001.jsonl"] == "0" * 64


def test_a_second_look_adds_nothing(child: RunFolder) -> None:
    record_run(child)
    record_run(child)
    assert len(LineageStore(child.path.parent / FOLDER).all_trials()) == 2


def test_a_run_that_starts_from_no_run_writes_no_table(tmp_path: Path) -> None:
    folder = make_night(tmp_path, n_steps=2).folder
    record_run(folder)
    record_run(RunFolder(tmp_path / "not-started"))
    assert not (tmp_path / FOLDER).exists()


def test_a_worse_adapter_is_discarded(tmp_path: Path) -> None:
    record_trial(tmp_path, Made("b", "a", 0.4, 0.5, {"adapter_sha": "x"}))
    (trial,) = LineageStore(tmp_path / FOLDER).all_trials()
    assert (trial.status, trial.specialist) == (FailureLabel.DISCARD, "grpo")
    assert trial.delta_vs_best == pytest.approx(-0.1)


def test_a_table_that_is_none_is_named(child: RunFolder) -> None:
    table = child.path.parent / FOLDER / "results.tsv"
    table.parent.mkdir()
    table.write_text("mine\n")
    with pytest.raises(BadInput, match=r"results\.tsv:1"):
        record_run(child)
    assert table.read_text() == "mine\n"
