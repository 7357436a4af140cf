"""What lives, whose it is, and that only what nobody uses is ended. Real processes throughout."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fieldkit.errors import Shortage, Unavailable
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned, command_line, family, start_time, terminate
from rollout.engine.leftovers import SCRATCH_VARIABLE, new_scratch
from rollout.engine.replica import ENGINE
from scripts.doctor import checkup, ownership
from scripts.doctor.ownership import Use, families, reclaim, told
from scripts.run import folder
from scripts.run.lock import LOOP
from tests.scripts.doctor.servers import WORKER, gone, loop_of, mine, start

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
# What setproctitle does, with the kernel's own call: title and arguments are someone else's then.
RENAMED = """
import ctypes
libc = ctypes.CDLL(None)
libc.prctl(15, b"VLLM::EngineCor", 0, 0, 0)
"""


# The server has a block of shared memory, and writes its name beside the log before it is up.
SHARING = """
import pathlib
from multiprocessing.shared_memory import SharedMemory
if not (note := pathlib.Path("shared")).exists():
    block = SharedMemory(create=True, size=4096)
    note.write_text(block.name)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of its own, whose processes do not outlive the test."""
    monkeypatch.setattr(ownership, "ROOT", tmp_path)
    monkeypatch.setattr(folder, "ROOT", tmp_path)
    yield tmp_path
    for process in psutil.process_iter(["environ"]):
        if str(tmp_path) in (process.info["environ"] or {}).get("FIELDKIT_LEDGER", ""):
            process.kill()


def reclaim_only(monkeypatch: pytest.MonkeyPatch, found: ownership.Family) -> list[str]:
    """Reclaim one family, whatever else this machine has."""
    monkeypatch.setattr(ownership, "families", lambda: [found])
    return reclaim()


def test_a_family_is_told_with_what_it_is_whose_it_is_and_what_it_holds(checkout: Path) -> None:
    owned = start(checkout / "runs" / "tonight")
    (found,) = mine(checkout)
    assert (found.run.name, found.name, found.use) == ("tonight", "trainer", Use.NOBODY)
    assert found.pids == tuple(family(owned.marker))
    assert len(found.pids) == 2
    assert found.held > 2**20
    assert f"trainer of run tonight, pid {found.pids[0]} and 1 more" in told(found)


def test_what_nobody_uses_is_named_by_the_doctor_and_ended_on_demand(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(checkout / "runs" / "old")
    (found,) = mine(checkout)
    monkeypatch.setattr(checkup, "families", lambda: [found])
    (finding,) = checkup._processes()
    assert not finding.ok
    assert finding.text.endswith("no loop uses it; `grpo doctor --reclaim` ends it")
    (own,) = checkup._processes(found.run.path)
    assert own.ok  # `make run` asks first, and is what goes on after a crash
    assert own.text.endswith("this run uses it or ends it")
    monkeypatch.setattr(ownership, "families", lambda: [found])
    (line,) = reclaim()
    assert line.startswith("ended trainer of run old: 2 processes")
    assert gone(found.pids)
    assert Ledger(checkout / "runs" / "old" / LEDGER_FILE).entries() == []


@pytest.mark.parametrize(
    ("prelude", "why"),
    [
        ("", "the leader was killed and only the worker is left"),
        (DEAF, "what is left ignores SIGTERM"),
        (RENAMED, "what is left calls itself something else"),
    ],
)
def test_a_worker_is_ended_when(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, prelude: str, why: str
) -> None:
    monkeypatch.setattr(ownership, "GRACE_SECONDS", 0.3)
    owned = start(checkout / "runs" / "night", prelude=prelude)
    assert owned.pid is not None
    os.kill(owned.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(owned.pid)], timeout=10)
    (found,) = mine(checkout)
    assert len(found.pids) == 1, why
    monkeypatch.setattr(ownership, "families", lambda: [found])
    reclaim()
    assert gone(found.pids), why


def test_a_family_whose_run_folder_was_deleted_is_found_and_ended(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkout / "runs" / "deleted"
    start(run)
    shutil.rmtree(run)
    (found,) = mine(checkout)
    assert (found.use, found.name, found.reclaimable) == (Use.LOST, "trainer", True)
    monkeypatch.setattr(ownership, "families", lambda: [found])
    reclaim()
    assert gone(found.pids)
    assert not run.exists()


def test_an_engine_whose_run_folder_was_deleted_leaves_neither_memory_nor_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = new_scratch()
    monkeypatch.setenv(SCRATCH_VARIABLE, str(scratch))
    run = checkout / "runs" / "deleted"
    start(run, name=ENGINE, prelude=SHARING)
    shared = Path("/dev/shm") / (run / "shared").read_text()
    shutil.rmtree(run)
    (found,) = mine(checkout)
    for pid in found.pids:  # the tracker first: it must not clean up behind the others
        if b"resource_tracker" in command_line(pid):
            os.kill(pid, signal.SIGKILL)
    assert shared.exists()
    monkeypatch.setattr(ownership, "families", lambda: [found])
    reclaim()
    assert gone(found.pids)
    assert not shared.exists()
    assert not scratch.exists()


def test_a_trainer_does_not_own_the_folder_that_it_was_given(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TMPDIR=/tmp/grpo-mine grpo run`: of the person's own folder nothing is removed."""
    own = new_scratch()
    monkeypatch.setenv(SCRATCH_VARIABLE, str(own))
    run = checkout / "runs" / "deleted"
    start(run)
    shutil.rmtree(run)
    (found,) = mine(checkout)
    monkeypatch.setattr(ownership, "families", lambda: [found])
    reclaim()
    assert gone(found.pids)
    own.rmdir()


@pytest.mark.parametrize("text", ["{", '{"schema": 9}', '{"schema": 1, "processes": [{}]}'])
def test_a_ledger_that_cannot_be_read_keeps_no_other_run_from_being_cleaned_up(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    runs = checkout / "runs"
    start(runs / "broken")
    start(runs / "old")
    (runs / "broken" / LEDGER_FILE).write_text(text)
    broken, old = sorted(mine(checkout), key=lambda f: f.run.name)
    assert (broken.use, broken.reclaimable) == (Use.UNKNOWN, False)
    monkeypatch.setattr(checkup, "families", lambda: [broken, old])
    bad = [f.text for f in checkup._processes() if not f.ok]
    assert len(bad) == 2
    ledger = runs / "broken" / LEDGER_FILE
    assert f"its ledger cannot be read ({ledger}" in bad[0]
    assert f"`mv {ledger} {ledger}.bad` and `grpo doctor --reclaim` end it" in bad[0]
    monkeypatch.setattr(ownership, "families", lambda: [broken, old])
    (line,) = reclaim()
    assert "old" in line
    assert gone(old.pids)
    assert not gone(broken.pids)
    ledger.rename(f"{ledger}.bad")  # as it said
    (broken,) = mine(checkout)
    assert reclaim_only(monkeypatch, broken)
    assert gone(broken.pids)


def test_one_that_cannot_be_ended_keeps_no_other(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(checkout / "runs" / "stuck")
    start(checkout / "runs" / "then")
    stuck, then = sorted(mine(checkout), key=lambda f: f.run.name)

    def refuse(owned: Owned, grace: float) -> list[int]:
        """A process that hangs in the kernel cannot be made here."""
        if owned.marker == stuck.marker:
            raise Unavailable("stuck in the kernel")
        return terminate(owned, grace)

    monkeypatch.setattr(ownership, "families", lambda: [stuck, then])
    monkeypatch.setattr(ownership, "terminate", refuse)
    with pytest.raises(Unavailable, match=r"ended trainer of run then.*\nstuck in the kernel"):
        reclaim()
    assert gone(then.pids)


def test_a_full_disk_holds_up_no_other(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose entry cannot be removed has ended; one whose end itself fails is told."""
    start(checkout / "runs" / "first")
    start(checkout / "runs" / "then")
    first, then = sorted(mine(checkout), key=lambda f: f.run.name)

    def full(ledger: Ledger, owned: Owned) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ownership, "families", lambda: [first, then])
    monkeypatch.setattr(Ledger, "forget", full)
    assert [line.split(":")[0] for line in reclaim()] == [
        "ended trainer of run first",
        "ended trainer of run then",
    ]
    assert gone(first.pids)
    assert gone(then.pids)
    monkeypatch.setattr(ownership, "terminate", full)
    with pytest.raises(Shortage, match=r"no space left on this disk.*\n.*no space left"):
        reclaim()


def test_what_a_loop_uses_is_left_alone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = checkout / "runs" / "tonight"
    start(run)
    with loop_of(run):
        (found,) = mine(checkout)
        assert (found.use, found.reclaimable) == (Use.LOOP, False)
        monkeypatch.setattr(ownership, "families", lambda: [found])
        assert reclaim() == []
    assert not gone(found.pids)


def test_what_belongs_to_another_checkout_is_left_alone(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    owned = start(other / "runs" / "theirs")
    (found,) = [f for f in families() if f.marker == owned.marker]
    assert (found.use, found.reclaimable) == (Use.ELSEWHERE, False)
    assert str(other) in told(found)
    monkeypatch.setattr(ownership, "families", lambda: [found])
    assert reclaim() == []
    assert not gone(found.pids)
    for pid in found.pids:
        os.kill(pid, signal.SIGKILL)


def test_a_detached_loop_that_has_not_taken_its_run_yet_is_left_alone(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkout / "runs" / "tonight"
    run.mkdir(parents=True)
    marks = Ledger(run / LEDGER_FILE).unannounced(LOOP)
    with subprocess.Popen([sys.executable, "-c", WORKER], env={**os.environ, **marks}) as loop:
        (found,) = mine(checkout)
        assert (found.use, found.reclaimable) == (Use.STARTING, False)
        assert reclaim_only(monkeypatch, found) == []
        assert loop.poll() is None
        loop.kill()


def test_what_no_ledger_names_is_left_alone_where_another_checkout_has_its_run(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("other") / "runs" / "theirs"
    owned = start(run)
    Ledger(run / LEDGER_FILE).forget(owned.name)
    (found,) = [f for f in families() if f.marker == owned.marker]
    assert (found.use, found.reclaimable) == (Use.ELSEWHERE, False)
    for pid in found.pids:
        os.kill(pid, signal.SIGKILL)


def test_a_stranger_who_got_the_pid_of_an_entry_is_neither_listed_nor_touched(
    checkout: Path,
) -> None:
    run = checkout / "runs" / "night"
    run.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", WORKER]) as stranger:
        ledger = Ledger(run / LEDGER_FILE)
        owned = ledger.announce("engine", ["vllm"], run / "log")
        earlier = (start_time(stranger.pid) or 0) - 1
        ledger.record(replace(owned, pid=stranger.pid, start_time=earlier))
        assert mine(checkout) == []
        assert stranger.poll() is None
        stranger.kill()
