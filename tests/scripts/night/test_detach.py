"""`grpo run --detach`: it says at once where it goes on, or why it does not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from fieldkit.errors import BadInput, NotOwner, Unavailable
from fieldkit.files.journal import Entry, Journal
from rollout.engine.serve import stop_engine
from scripts.night import detach as detaching
from scripts.night.detach import _await_ownership, detach
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from tests.chaos.night import GRPO_RUN, SITE, alive
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


def test_a_loop_that_does_not_own_the_run_in_time_is_told_with_its_pid_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detaching, "_START_SECONDS", 0.2)
    with subprocess.Popen(["sleep", "600"]) as slow:
        log = tmp_path / "an evening.log"
        try:
            with pytest.raises(Unavailable, match=rf"pid {slow.pid}, .*`tail -f '{log}'`.*`kill"):
                _await_ownership(slow, RunFolder(tmp_path), log)
        finally:
            slow.kill()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_detached_night_survives_the_closed_terminal(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    """One without a step, on the scripted engine: started, evaluated, and over by itself."""
    folder = RunFolder(write_run(tmp_path / "night", *policy))
    started = subprocess.run(
        [*GRPO_RUN, str(folder.path), "--steps", "0", "--detach"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SITE)},
        check=False,
    )
    assert started.returncode == 0, started.stderr
    told = re.search(
        r"run night continues in the background: pid (\d+), `tail -f (.+)`", started.stdout
    )
    assert told is not None, started.stdout
    loop, log = psutil.Process(int(told[1])), Path(told[2])
    try:
        assert os.getsid(loop.pid) == loop.pid, "it is in the session of the terminal"
        while not phases(folder):
            assert loop.is_running(), log.read_text(encoding="utf-8")
            time.sleep(0.01)  # the journal is written by another process
        os.killpg(loop.pid, signal.SIGHUP)
        loop.wait()
        assert phases(folder) == ["start", "eval"], log.read_text(encoding="utf-8")
        assert [e.data["next"] for e in entries(folder, "loop_end")] == ["done"], log.read_text(
            encoding="utf-8"
        )
        assert alive(folder.path) == []
    finally:
        stop_engine(folder.path)


def entries(folder: RunFolder, event: str) -> list[Entry]:
    return [e for e in Journal(folder.journal).read() if e.event == event]


def phases(folder: RunFolder) -> list[str]:
    """Those that have begun, in order."""
    return [e.data["phase"] for e in entries(folder, "phase_start")]
