"""`grpo run --detach`: it says at once where it goes on, or why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput, NotOwner
from scripts.detach import detach
from scripts.lock import run_lock
from scripts.run_folder import RunFolder
from tests.tiny_policy import write_run


def test_a_run_that_cannot_start_is_reported_to_the_person_who_typed_it(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "r", tmp_path / "no-model", tmp_path / "no-adapter"))
    (folder.config).write_text(folder.config.read_text() + "\n[rollout2]\n")
    with pytest.raises(BadInput, match="rollout2"):
        detach(folder, [])
    assert list(folder.log.glob("detached-*.log"))


def test_a_run_that_another_loop_owns_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "r", tmp_path / "no-model", tmp_path / "no-adapter"))
    with run_lock(folder.lock), pytest.raises(NotOwner, match="another loop owns run r"):
        detach(folder, [])
