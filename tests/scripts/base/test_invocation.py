"""Every command that a message names can be typed as it stands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.base.checkout import ROOT
from scripts.base.invocation import called, typeable

BIN = Path(sys.executable).parent


@pytest.fixture
def bare_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH without the checkout's programs."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_grpo_is_called_by_its_name_where_the_path_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}/usr/bin")
    assert called() == "grpo"


def test_another_grpo_on_the_path_is_not_taken_for_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (other := tmp_path / "grpo").write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert called() != "grpo"


@pytest.mark.usefixtures("bare_path")
def test_elsewhere_it_is_called_by_a_path_that_works_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in (BIN.parents[1], tmp_path):
        monkeypatch.chdir(folder)
        said = subprocess.run(
            [*shlex.split(called()), "--version"], capture_output=True, text=True, check=True
        )
        assert said.stdout.startswith("grpo ")
    monkeypatch.chdir(BIN.parents[1])
    assert called() == str((BIN / "grpo").relative_to(BIN.parents[1]))


@pytest.mark.usefixtures("bare_path")
def test_a_message_that_passes_two_programs_is_changed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    once = typeable("no run: `grpo new x` makes one; `make setup` installs it")
    assert once == f"no run: `{BIN}/grpo new x` makes one; `make -C {ROOT} setup` installs it"
    assert typeable(once) == once
    built = typeable("`GRPO_BUILD=cpu make setup` goes back")
    assert built == f"`GRPO_BUILD=cpu make -C {ROOT} setup` goes back"
    after = typeable("`cp a b && grpo run again` plays it")
    assert after == f"`cp a b && {BIN}/grpo run again` plays it"


@pytest.mark.usefixtures("bare_path")
@pytest.mark.usefixtures("bare_path")
def test_in_a_folder_that_was_removed_a_message_is_written_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert typeable("`grpo new x`, `make setup`") == f"`{BIN}/grpo new x`, `make -C {ROOT} setup`"


def test_the_command_in_an_error_can_be_typed_where_the_error_was_read(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "scripts.cli", "run", f"{tmp_path}/none"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    named = done.stderr.rpartition(";")[2].split("`")[1]
    assert done.returncode == 2
    made = subprocess.run(named, shell=True, cwd=tmp_path, check=False)
    assert made.returncode == 0
    assert (tmp_path / "none" / "run.toml").is_file()
