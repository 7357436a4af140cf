"""What `grpo run` says before it begins, and `grpo next` at the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fieldkit.files.journal import Journal
from scripts.base.checkout import ROOT
from tests.scripts.cli.in_process import grpo
from tests.scripts.run.exhausted import exhausted_night


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--until", "7pm"), "--until 7pm: a time of day is written HH:MM"),
        (("--until", "7pm", "--detach"), "--until 7pm: a time of day is written HH:MM"),
        (("--minutes", "-5"), "run.minutes"),
        (("--minutes", "nan"), "run.minutes"),
    ],
)
@pytest.mark.parametrize("written", [("--set", "run.seed=4"), ("--engine", "ray")])
def test_an_option_that_no_loop_takes_is_refused_before_a_setting_is_written(
    words: tuple[str, ...], said: str, written: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "tonight"
    folder.mkdir()
    (folder / "run.toml").write_text("[run]\nsteps = 2\n")
    ended = grpo("run", folder, *written, *words)
    assert (ended.code, ended.error.count("\n")) == (2, 1), ended
    assert said in ended.error
    assert [path.name for path in folder.iterdir()] == ["run.toml"]
    assert (folder / "run.toml").read_text() == "[run]\nsteps = 2\n"


def test_the_next_phase_of_a_finished_run_is_done_also_where_another_version_played_it(
    tmp_path: Path,
) -> None:
    ended = grpo("next", "long-2")
    assert (ended.code, ended.out) == (0, "done\n"), ended.error
    shutil.copytree(ROOT / "runs/long-2", tmp_path / "stopped")
    Journal(tmp_path / "stopped/journal.jsonl").append("loop_start")
    ended = grpo("next", tmp_path / "stopped")
    assert ended.code == 2
    assert "the run was begun with grpo-loop 0.2.0" in ended.error
    assert "stopped-again` play it again" in ended.error


def test_where_a_run_has_no_sandbox_the_command_that_grows_its_pool_says_so_too(
    tmp_path: Path,
) -> None:
    night = exhausted_night(tmp_path).folder
    manifest = json.loads(night.manifest.read_text())
    night.manifest.write_text(json.dumps({**manifest, "sandbox": "none"}))
    ended = grpo("next", night.path)
    assert ended.code == 3
    assert f"`grpo run {night.typed} --sandbox none`" in ended.error
