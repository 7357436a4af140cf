"""What a killed server leaves is removed, its memory waited for, and nothing that is not its own.

The servers are small processes in an engine's place: started through the ledger under its name,
with a scratch folder and shared memory as vLLM has them.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import Shortage
from fieldkit.gate.memory import GIB, Available, Reclaim
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned, family, terminate
from fieldkit.process.shared_memory import PLACE, shared_files
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.leftovers import (
    BESIDE,
    OUTLIVES,
    SCRATCH_VARIABLE,
    Leftovers,
    held_note,
    new_scratch,
)
from rollout.engine.replica import ENGINE
from rollout.engine.serve import stop_engine
from rollout.engine.server import Server, silent

# Has a block of shared memory whose name it says, and ends when it is asked to, removing nothing.
SERVER = """
import multiprocessing.shared_memory, os, signal
block = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
print(block.name, flush=True)
signal.pause()
"""
AT_ONCE = EngineSettings(memory_seconds=0.0)
IMPOSSIBLE = replace(AT_ONCE, memory_margin_gib=-1e6)
"""More than the machine has would have to come back."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run folder whose processes do not outlive the test, nor does what they share."""
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    for owned in Ledger(folder / LEDGER_FILE).entries():
        terminate(owned, 0.0)
    if (log := folder / "engine.log").exists():
        (PLACE / log.read_text().strip()).unlink(missing_ok=True)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An engine's scratch folder with a file in it."""
    folder = new_scratch()
    (folder / "socket").touch()
    yield folder
    if folder.exists():
        (folder / "socket").unlink()
        folder.rmdir()


def start(run: Path, scratch: Path, **info: Any) -> tuple[Owned, str]:
    """Start a server; its entry, and the name of its shared memory."""
    log = run / "engine.log"
    owned = Ledger(run / LEDGER_FILE).launch(
        ENGINE,
        [sys.executable, "-c", SERVER],
        env={**os.environ, SCRATCH_VARIABLE: str(scratch)},
        cwd=run,
        log=log,
        info={"scratch": str(scratch), **info},
    )
    with subprocess.Popen(
        ["tail", "-n", "+1", "-F", "--pid", str(owned.pid), str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        block = tail.stdout.readline().strip()
        tail.kill()
    return owned, block


def kill_all(owned: Owned) -> None:
    """SIGKILL a server and its resource tracker at once."""
    pids = family(owned.marker)
    for sent in (signal.SIGSTOP, signal.SIGKILL):  # a tracker that outlives a server tidies up
        for pid in pids:
            os.kill(pid, sent)
    terminate(owned, 0.0)  # until they are gone


def note(run: Path, owned: Owned, **info: Any) -> None:
    """Add to what the ledger knows of a server."""
    Ledger(run / LEDGER_FILE).record(replace(owned, info={**owned.info, **info}))


def test_a_server_that_was_killed_with_its_tracker_leaves_neither_memory_nor_folder(
    run: Path, scratch: Path
) -> None:
    owned, block = start(run, scratch)
    note(run, owned, shared=shared_files(family(owned.marker)))
    kill_all(owned)
    assert (PLACE / block).exists(), "there would be nothing to remove"
    assert stop_engine(run, AT_ONCE) == 0
    assert not (PLACE / block).exists()
    assert not scratch.exists()
    assert Ledger(run / LEDGER_FILE).get(ENGINE) is None


def test_a_server_that_lives_is_ended_with_what_it_has(run: Path, scratch: Path) -> None:
    owned, block = start(run, scratch)
    assert stop_engine(run) == 2  # itself and its tracker
    assert family(owned.marker) == []
    assert not (PLACE / block).exists()
    assert not scratch.exists()


def test_a_full_disk_keeps_no_server_alive(
    run: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned, _ = start(run, scratch)
    beside = subprocess.Popen(["sleep", "600"])
    trainer = Ledger(run / LEDGER_FILE).announce(
        "trainer", ["sleep"], run / "log", {BESIDE: ENGINE}
    )
    Ledger(run / LEDGER_FILE).started(trainer, beside.pid)

    def full(self: Ledger, entries: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Ledger, "_write", full)
    assert stop_engine(run) == 2
    assert family(owned.marker) == []
    assert beside.wait(timeout=5) == -signal.SIGTERM


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_trainer_that_works_while_the_engine_plays_outlives_a_server_that_is_replaced(
    run: Path, scratch: Path, overlaps: bool
) -> None:
    start(run, scratch)
    beside = subprocess.Popen(["sleep", "600"])
    notes = {BESIDE: ENGINE, OUTLIVES: overlaps}
    trainer = Ledger(run / LEDGER_FILE).announce("trainer", ["sleep"], run / "log", notes)
    Ledger(run / LEDGER_FILE).started(trainer, beside.pid)
    assert Server(run, EngineSettings(), silent).stop() == 2
    assert (beside.poll() is None) == overlaps
    stop_engine(run)
    assert beside.wait(timeout=5) == -signal.SIGTERM


@pytest.mark.parametrize("kind", ["elsewhere", "another name", "a link", "open to others"])
def test_a_folder_that_need_not_be_an_engines_is_left_alone(kind: str, tmp_path: Path) -> None:
    other = tmp_path / "grpo-other"
    other.mkdir(mode=0o700)
    (other / "file").touch()
    named = other
    if kind == "another name":
        named = Path(tempfile.mkdtemp(prefix="other-", dir="/tmp"))
    elif kind == "a link":
        named = new_scratch()
        named.rmdir()
        named.symlink_to(other)
    elif kind == "open to others":
        named = new_scratch()
        named.chmod(0o755)
    Leftovers.of([], {"scratch": str(named)}).remove()
    assert (other / "file").exists()
    assert named.exists()
    if named.is_symlink():
        named.unlink()
    elif named != other:
        named.rmdir()


# -- memory ------------------------------------------------------------------------------------


def test_a_stop_waits_for_the_memory_and_says_who_holds_it(run: Path, scratch: Path) -> None:
    owned, _ = start(run, scratch)
    with pytest.raises(Shortage, match=r"engine's memory to come back: .*largest holders: pid \d+"):
        stop_engine(run, IMPOSSIBLE)
    assert family(owned.marker) == []
    assert not scratch.exists()
    stop_engine(run, IMPOSSIBLE)  # it was said; the next start asks for what it needs


def test_what_a_server_held_that_was_killed_before_the_stop_has_to_come_back_too(
    run: Path, scratch: Path
) -> None:
    """It is told that the server held more than there is, so that it cannot have come back."""
    owned, _ = start(run, scratch)
    held = held_note(family(owned.marker))
    note(run, owned, held={**held, "held": held["before"]["host"] + 2 * GIB})
    kill_all(owned)
    with pytest.raises(Shortage, match="engine's memory to come back"):
        stop_engine(run, AT_ONCE)


def test_what_was_noted_long_ago_is_no_measure_any_more(run: Path, scratch: Path) -> None:
    owned, _ = start(run, scratch)
    held = held_note(family(owned.marker))
    old = {**held, "held": held["before"]["host"] + 2 * GIB, "at": held["at"] - 86_400}
    note(run, owned, held=old)
    kill_all(owned)
    stop_engine(run, AT_ONCE)


def test_a_note_is_read_as_it_was_measured() -> None:
    measured = Reclaim(frozenset({7, 8}), Available(5, None), held=3, held_gpu=2, others=1)
    assert Reclaim.read(measured.plain()) == measured
