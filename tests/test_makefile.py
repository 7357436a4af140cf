"""What `make` does around the commands that it types for a person."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.errors import NotOwner
from rollout.engine.serve import find_engine, stop_engine
from scripts.base.checkout import ROOT
from scripts.prepare.presets import run_text
from scripts.run.lock import run_lock
from tests.chaos.night import GRPO_RUN, SITE
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(1200)


def make(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `make` with these words on the set-up that the tests run in."""
    command = ["make", f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.ready", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, check=False
    )


@pytest.fixture(scope="module")
def started(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was started and has played nothing."""
    folder = write_run(tmp_path_factory.mktemp("nights") / "night", *policy)
    words = [*GRPO_RUN[:-1], "start", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def night(started: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it, which leaves no engine behind."""
    yield (folder := shutil.copytree(started, tmp_path / "night"))
    stop_engine(folder)


def test_make_eval_shows_the_table_and_leaves_no_engine_behind(night: Path) -> None:
    done = make("eval", f"RUN={night}", PYTHONPATH=str(SITE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tasks passed" in done.stdout
    assert "run night: engine stopped" in done.stdout
    assert find_engine(night) is None


def test_make_eval_ends_as_the_evaluation_did(night: Path) -> None:
    """`make` says the code of a command that failed; here the run is another loop's."""
    with run_lock(night / "lock"):
        done = make("eval", f"RUN={night}", PYTHONPATH=str(SITE))
    assert f"Error {NotOwner.exit_code}" in done.stderr


def test_another_build_that_is_asked_for_is_set_up_where_one_is_there_already(
    tmp_path: Path,
) -> None:
    (tmp_path / ".ready").write_text("cpu\n")
    env = {k: v for k, v in os.environ.items() if k != "GRPO_BUILD"}

    def would_do(**asked: str) -> str:
        command = ["make", "-n", f"VENV={tmp_path}", "setup"]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env={**env, **asked}, check=True
        ).stdout

    assert "scripts/setup/setup.sh" in would_do(GRPO_BUILD="cuda")
    assert "scripts/setup/setup.sh" not in would_do(GRPO_BUILD="cpu")
    assert "scripts/setup/setup.sh" not in would_do()


def test_what_was_copied_or_has_lost_its_python_is_set_up_again(tmp_path: Path) -> None:
    (tmp_path / ".ready").write_text("cpu\n")
    (tmp_path / "bin").mkdir()
    python, activate = tmp_path / "bin/python", tmp_path / "bin/activate"

    def is_set_up_again(holder: Path) -> bool:
        activate.write_text(f"VIRTUAL_ENV={holder}\n")
        command = ["make", "-n", f"VENV={tmp_path}", "GRPO_BUILD=", "setup"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        return "scripts/setup/setup.sh" in done.stdout

    python.symlink_to(sys.executable)
    assert not is_set_up_again(tmp_path)
    assert is_set_up_again(tmp_path.parent / "other")
    for lost in ("/nowhere/python3", "/bin/false"):  # removed; of another version, without pip
        python.unlink()
        python.symlink_to(lost)
        assert is_set_up_again(tmp_path)


@pytest.mark.parametrize("args", ["--sandbox none", "--until 07:00 --sandbox=none"])
def test_a_run_without_the_sandbox_asks_for_none_of_its_programs(args: str) -> None:
    assert "system.sh ensure" in make("-n", "run").stdout
    bare = make("-n", "run", f"ARGS={args}").stdout
    assert "system.sh" not in bare
    assert "grpo doctor tonight --sandbox none\n" in bare


def test_a_preset_for_a_run_that_has_settings_is_refused_with_what_makes_another(
    tmp_path: Path,
) -> None:
    """All commands of the set-up print their words; those of another preset are not reached."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "grpo").write_text('#!/bin/sh\necho "grpo $*"\n')
    (tmp_path / "bin" / "grpo").chmod(0o755)
    (tmp_path / "run.toml").write_text(run_text("smol", assignments=["run.seed=7"]))
    run = f"RUN={tmp_path}"

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        only = [
            "--no-print-directory",
            "--old-file=programs",
            f"--old-file={tmp_path}/.ready",
            "BARE=1",
        ]
        return subprocess.run(
            ["make", f"VENV={tmp_path}", *only, "run", run, *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )

    refused = typed("PRESET=smol-long")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "has its own settings" in refused.stderr
    assert "`make run RUN=work PRESET=smol-long`" in refused.stderr
    for words in ((), ("PRESET=smol",)):
        said = typed(*words).stdout
        assert "\ngrpo doctor " in said
        assert "grpo new " not in said
