"""One arm by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rollout.sandbox.command import SandboxSettings
from scripts.compare.arm_figures import arm_figures, plain_figures, single_arm_table
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import manifest_of
from tests.scripts.evals import arm, tasks, write_eval


def test_what_is_the_same_on_each_task_and_what_counts_all_attempts_is_said_so(
    tmp_path: Path,
) -> None:
    on = tasks(8)
    first, second = (arm("sha", on, passes=n, turns=3, stops=8, k=k) for k, n in enumerate((8, 4)))
    folder = write_eval(tmp_path / "evals", [*first, *second], on, samples=2)
    table = single_arm_table(arm_figures("mine", folder, on))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["mean turns"] == ("3.0", "on each task")
    assert rows["tasks passed"][0] == "8/8 (100.0 %)"
    assert rows["passed, of all attempts"][0] == "12/16 (75.0 %)"
    assert rows["stops of all attempts"][0] == "TASK_COMPLETE 16"
    assert any(
        note.startswith("Of 2 attempts at a task the first ones count") for note in table.notes
    )


def test_an_adapter_whose_replies_are_cut_is_told_apart_from_one_that_goes_on(
    tmp_path: Path,
) -> None:
    on = tasks(4)
    played = arm("sha", on, passes=0, turns=2, stops=0)
    cut = [
        replace(t, turns=tuple(replace(turn, finish_reason="length") for turn in t.turns))
        for t in played
    ]
    folder = write_eval(tmp_path / "evals", cut, on)
    notes = single_arm_table(arm_figures("mine", folder, on)).notes
    assert any("8 of 8 replies were cut at rollout.max_new_tokens" in note for note in notes)
    whole = write_eval(tmp_path / "whole" / "evals", played, on)
    notes = single_arm_table(arm_figures("mine", whole, on)).notes
    assert not any("replies" in note for note in notes)


def test_an_arm_that_was_played_without_a_sandbox_says_so(tmp_path: Path) -> None:
    on = tasks(4)
    folder = write_eval(tmp_path / "evals", arm("sha", on, passes=2, turns=2, stops=4), on)
    assert not any(
        "sandbox" in note for note in single_arm_table(arm_figures("m", folder, on)).notes
    )
    config = RunConfig(sandbox=SandboxSettings(kind="none"))
    model, adapter = {"dir": "m", "files": {}}, {"sha": "sha", "other_base": None}
    identity = {"tasks_sha": "t", "settings_sha": "s"}
    written = manifest_of(RunFolder(tmp_path), config, model, adapter, identity)
    (tmp_path / "manifest.json").write_text(json.dumps(written))
    found = arm_figures("mine", folder, on)
    for notes in (single_arm_table(found).notes, plain_figures(found)["notes"]):
        assert notes[0].startswith("Played without a sandbox (--sandbox none): mine. ")
