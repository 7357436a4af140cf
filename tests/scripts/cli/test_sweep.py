"""`grpo sweep`: which nights it asks for, and what is said where a sweep is taken for a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import Interrupted, Unavailable
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


def test_the_command_that_goes_on_with_a_sweep_has_the_flags_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = RunFolder(tmp_path / "sweep"), []
    new_sweep(folder, "smol", [], "0", [], None)

    def played(
        nights: object, options: object, until: object, say: object, go_on: str, wish: object
    ) -> bool:
        told.append(go_on)
        return False

    monkeypatch.setattr("scripts.night.several.play_nights", played)
    ended = grpo("sweep", "run", folder.path, "--skip-preflight", "--sandbox", "none")
    assert ended.code == 0, ended.error
    assert told == [f"grpo sweep run {folder.path} --skip-preflight --sandbox none"]


@pytest.mark.parametrize(
    ("failure", "compared"), [(Unavailable("a failed"), True), (Interrupted("stopped"), False)]
)
def test_where_a_night_failed_the_others_are_compared_before_the_error(
    failure: Exception, compared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, shown = RunFolder(tmp_path / "sweep"), list[str]()
    new_sweep(folder, "smol", [], "0,1", [], None)

    def failed(*whatever: object) -> bool:
        raise failure

    monkeypatch.setattr("scripts.night.several.play_nights", failed)
    monkeypatch.setattr("scripts.cli.sweep.show", shown.append)
    ended = grpo("sweep", "run", folder.path)
    assert (ended.code, bool(shown)) == (getattr(failure, "exit_code", 1), compared)
    assert str(failure) in ended.error


def test_where_the_time_did_not_suffice_what_is_over_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "sweep")
    new_sweep(folder, "smol", [], "0,1", [], None)
    monkeypatch.setattr("scripts.night.several.play_nights", lambda *whatever: False)
    ended = grpo("sweep", "run", folder.path, "--hours", "1")
    assert ended.code == 0, ended.error
    assert "not compared: no night is finished and evaluated yet" in ended.out


@pytest.mark.parametrize("command", ["table", "watch", "stop"])
def test_a_sweep_is_no_run_and_its_nights_are_named(command: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "sweep")
    new_sweep(folder, "smol", [], "0,1", [], None)
    ended = grpo(command, folder.path)
    assert ended.code == 2
    assert "a sweep and no run" in ended.error
    assert f"grpo sweep show {folder.path}` compares its nights" in ended.error
    assert f"by its path: {folder.path}/night-seed0" in ended.error


def test_a_sweep_whose_first_night_is_not_over_says_what_plays_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "sweep")
    new_sweep(folder, "smol", [], "0,1", [], None)
    ended = grpo("sweep", "show", folder.path)
    assert ended.code == 2
    assert "no night is finished and evaluated yet" in ended.error
    assert f"grpo sweep run {folder.path}` plays them" in ended.error


def test_the_commands_of_a_sweep_take_the_name_of_one() -> None:
    for command in ("new", "run", "show"):
        assert " SWEEP" in grpo("sweep", command, "-h").out
