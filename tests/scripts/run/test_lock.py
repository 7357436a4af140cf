"""One loop a run: who is refused, who inherits, and what a crash leaves."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fieldkit.errors import NotOwner
from scripts.run.lock import LOCK_FD_VARIABLE, is_held, run_lock
from scripts.run.lock import holder as holder_of

HOLD = """
import sys
import threading
from pathlib import Path
from scripts.run.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its stdin is closed."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    folder = tmp_path / "tuesday"
    folder.mkdir()
    return folder / "lock"


def test_a_second_loop_is_told_who_owns_the_run_and_how_to_stop_it(lock: Path) -> None:
    with holder(lock) as first:
        says = f"owns run tuesday: pid {first.pid} .*`kill {first.pid}"
        with pytest.raises(NotOwner, match=says), run_lock(lock):
            pytest.fail("two loops own one run")
        assert NotOwner.exit_code == 6
        first.kill()


def test_a_full_disk_keeps_nobody_from_the_lock(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes room has to begin; the holder's name is a courtesy."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with run_lock(lock):
        assert is_held(lock)
    assert not is_held(lock)


def taken_by_one_that_is_gone(lock: Path, phase: subprocess.Popen[str]) -> None:
    """What a killed loop leaves where its phase still holds the lock."""
    said = lock.read_text(encoding="utf-8")
    lock.write_text(said.replace(f'"pid": {phase.pid}', f'"pid": {2**22 + 1}'), encoding="utf-8")


def test_a_phase_that_outlives_its_loop_is_named_by_a_command_that_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.run.lock._PATIENCE_SECONDS", 0.0)
    lock = tmp_path / "my night" / "lock"
    lock.parent.mkdir()
    with holder(lock) as phase:
        taken_by_one_that_is_gone(lock, phase)
        with pytest.raises(NotOwner, match=f"is gone, .*`fuser '{lock}'` names it"), run_lock(lock):
            pytest.fail("the phase still holds it")
        phase.kill()


def test_a_phase_that_ends_a_server_is_waited_for_and_the_wait_is_told(
    lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make chaos` met one that took more than the five seconds that were waited."""
    monkeypatch.setattr("scripts.run.lock._SILENT_SECONDS", 0.2)
    with holder(lock) as phase:
        taken_by_one_that_is_gone(lock, phase)
        ending = threading.Timer(1.0, phase.kill)
        ending.start()
        with run_lock(lock):
            ending.join()
    told = capsys.readouterr().err
    assert told == (
        "waiting, 60 s at most, for a phase that an earlier loop of tuesday left to end\n"
    )


def test_a_loop_that_was_killed_leaves_no_lock_behind(lock: Path) -> None:
    with holder(lock) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
    with run_lock(lock):
        assert str(os.getpid()) in lock.read_text(encoding="utf-8")


def test_a_phase_uses_the_lock_of_the_loop_that_started_it(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_lock(lock) as fd:
        monkeypatch.setenv(LOCK_FD_VARIABLE, str(fd))
        with run_lock(lock) as again:
            assert again == fd


def test_the_lock_of_another_run_is_not_inherited(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_lock(lock) as fd:
        monkeypatch.setenv(LOCK_FD_VARIABLE, str(fd))
        with run_lock(tmp_path / "lock") as other:
            assert other != fd


def test_a_look_from_outside_names_the_holder_as_long_as_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None
    other = holder(path)
    assert holder_of(path) == other.pid
    other.kill()
    other.wait()
    assert holder_of(path) is None


def test_a_holder_on_another_host_is_nobody_here(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with run_lock(path):
        assert holder_of(path) == os.getpid()
        path.write_text(path.read_text().replace(socket.gethostname(), "elsewhere"))
        assert holder_of(path) is None


def test_who_has_let_go_is_not_named_even_while_it_lives_on(lock: Path) -> None:
    """A sweep goes on with its next night in the same process."""
    with run_lock(lock):
        assert holder_of(lock) == os.getpid()
    assert holder_of(lock) is None
    with pytest.raises(RuntimeError), run_lock(lock):
        raise RuntimeError("the night failed")
    assert holder_of(lock) is None


def test_the_name_goes_before_the_lock_does(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it, it would be the next holder's name."""
    close, left = os.close, list[tuple[bytes, bool]]()

    def closed(fd: int) -> None:
        monkeypatch.undo()
        left.append((lock.read_bytes(), is_held(lock)))
        close(fd)

    with run_lock(lock):
        monkeypatch.setattr(os, "close", closed)
    assert left == [(b"", True)]


def test_a_phase_that_ends_leaves_the_name_of_its_loop(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_lock(lock) as fd:
        monkeypatch.setenv(LOCK_FD_VARIABLE, str(fd))
        with run_lock(lock):
            pass
        assert holder_of(lock) == os.getpid()


def test_one_that_holds_the_lock_without_a_name_is_waited_for(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder(lock) as nameless:
        lock.write_bytes(b"")
        monkeypatch.setattr("scripts.run.lock._PATIENCE_SECONDS", 0.0)
        with pytest.raises(NotOwner, match=r"still ending; `fuser .*` names it"), run_lock(lock):
            pytest.fail("it is held")
        monkeypatch.undo()
        threading.Timer(0.3, nameless.kill).start()
        with run_lock(lock):
            assert holder_of(lock) == os.getpid()
