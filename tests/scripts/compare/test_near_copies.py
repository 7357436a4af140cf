"""Held-out tasks that are much like those of training, left out of a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.tasks import read_tasks
from scripts.base.checkout import ROOT
from scripts.compare.compare import compare_arms
from scripts.compare.forms import markdown
from scripts.compare.over_seeds import compare_nights
from scripts.compare.seed_forms import markdown as markdown_of_nights
from tests.scripts.made_night import make_night, tasks, write_tasks


def test_tasks_whose_prompts_are_much_like_one_of_a_file_are_left_out(tmp_path: Path) -> None:
    arms = [f"{ROOT}/runs/idle-night@warm", f"{ROOT}/runs/idle-night"]
    whole = compare_arms(arms)
    copied = read_tasks(ROOT / "data" / "heldout.jsonl")[5]
    near = replace(copied, task_id="trained-on", prompt=copied.prompt.replace(".", " now."))
    file = write_tasks(tmp_path / "pool.jsonl", [near])
    found = compare_arms(arms, unlike=file)
    assert found.n_tasks == whole.n_tasks - 1
    ids = {t.task_id for arm in found.arms.values() for t in arm.played.trajectories}
    assert copied.task_id not in ids
    assert [row.n_tasks for row in found.rows] == [found.n_tasks] * 2
    said = f"1 of {whole.n_tasks} tasks are left out: their prompts have 60 % or more"
    assert said in " ".join(found.remarks)
    assert said in markdown(found)


def test_the_same_tasks_are_left_out_of_each_nights_start_and_end(tmp_path: Path) -> None:
    words = [f"{ROOT}/runs/long-2", f"{ROOT}/runs/long-3"]
    copied = read_tasks(ROOT / "data" / "final.jsonl")[5]
    file = write_tasks(tmp_path / "pool.jsonl", [replace(copied, task_id="trained-on")])
    found = compare_nights(words, unlike=file)
    assert found.n_tasks == len(read_tasks(ROOT / "data" / "final.jsonl")) - 1
    assert all(copied.task_id not in at for n in found.arms[0].nights for at in (n.start, n.end))
    assert "1 of 408 tasks are left out" in markdown_of_nights(found)


@pytest.mark.parametrize("known", [True, False])
def test_where_nothing_would_be_left_or_prompts_are_not_known_leaving_out_is_refused(
    tmp_path: Path, known: bool
) -> None:
    night = make_night(tmp_path / "made").folder
    file = write_tasks(tmp_path / "like.jsonl", tasks(1, "other"))  # the same prompt
    if not known:
        manifest = json.loads(night.manifest.read_text())
        manifest["data"]["heldout"]["path"] = "gone.jsonl"
        night.manifest.write_text(json.dumps(manifest))
    reason = "all 24 held-out tasks are like tasks of it" if known else "nothing is known"
    with pytest.raises(BadInput, match=f"--unlike.*{reason}"):
        compare_arms([f"{night.path}@warm", str(night.path)], unlike=file)
