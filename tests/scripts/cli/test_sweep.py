"""`grpo sweep run`: which nights it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.prepare.sweep_file import new_sweep
from scripts.run.folder import RunFolder
from tests.scripts.cli.in_process import grpo


def finish(night: RunFolder, steps: int) -> None:
    for n in range(steps + 1):
        night.step(n).mkdir()
        night.summary(n).write_text("{}")


def test_a_resumed_sweep_asks_nothing_of_a_night_that_was_stopped_beyond_the_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = RunFolder(tmp_path / "sweep"), []
    sweep = new_sweep(folder, "smol", ["reward.turn_penalty=0,1"], "0", ["run.steps=8"], 2)
    ahead, at_the_rung = (night.folder for night in sweep.nights)
    finish(ahead, 3)
    finish(at_the_rung, 2)

    def played(nights: list[RunFolder], options: object, *rest: object) -> bool:
        asked.append((getattr(options, "steps", None), [night.name for night in nights]))
        return True

    monkeypatch.setattr("scripts.night.several.play_nights", played)
    monkeypatch.setattr("scripts.night.halving.passed", lambda nights, steps: 0.5)
    monkeypatch.setattr("scripts.cli.sweep.show", lambda name: None)
    ended = grpo("sweep", "run", folder.path)
    assert ended.code == 0, ended.error
    assert asked == [(2, [at_the_rung.name]), (8, [ahead.name])]
