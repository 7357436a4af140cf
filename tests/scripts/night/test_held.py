"""The loop's look at the memory of engine and trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fieldkit.gate import memory
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import terminate, wait_ended
from scripts.night import held
from scripts.night.held import Held
from scripts.phases.training.kept_trainer import TRAINER
from scripts.run.folder import RunFolder

MIB = 1024**2


def test_the_most_that_the_trainer_held_is_known_after_it_gave_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_LOOK_SECONDS", 0.0)
    folder = RunFolder(tmp_path)
    taken, done = tmp_path / "taken", tmp_path / "done"
    subprocess.run(["mkfifo", str(taken), str(done)], check=True)
    program = (
        f"held = b'x' * {200 * MIB}\n"
        f"open({str(taken)!r}, 'w').close()\n"  # both open at the same moment
        f"open({str(done)!r}).close()\n"
    )
    looking = Held(folder)
    owned = Ledger(folder.ledger).launch(
        TRAINER,
        [sys.executable, "-c", program],
        env={},
        cwd=tmp_path,
        log=tmp_path / "log",
        info={},
    )
    try:
        open(taken, encoding="utf-8").close()
        looking.look()
        open(done, "w", encoding="utf-8").close()
        assert wait_ended(owned, 10.0)
    finally:
        terminate(owned, 1.0)
    looking.look()
    assert 200 * MIB < looking.most < 260 * MIB
    assert looking.news() == looking.most
    assert looking.news() is None


def test_where_a_gpu_is_nothing_is_asked_of_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "gpu_total", lambda: 24 * 1024 * MIB)
    monkeypatch.setattr(memory, "gpu_held_by", lambda pids: pytest.fail("the driver was asked"))
    looking = Held(RunFolder(tmp_path))
    looking.look()
    assert looking.news() is None


def test_a_run_without_engine_and_trainer_holds_nothing(tmp_path: Path) -> None:
    looking = Held(RunFolder(tmp_path))
    looking.look()
    assert looking.news() is None
