"""Shared memory of killed processes: known from their maps, removed, and nobody else's touched."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fieldkit.process.shared_memory import PLACE, remove_shared, shared_files

# Makes a block and a semaphore as vLLM does, says what the block is called, and stays.
MAKER = """
import multiprocessing, signal
from multiprocessing.shared_memory import SharedMemory
lock = multiprocessing.get_context("spawn").Lock()
block = SharedMemory(create=True, size=4096)
print(block.name, "sem." + lock._semlock.name.lstrip("/"), flush=True)
signal.pause()
"""
# Maps a block that another process made.
GUEST = """
import mmap, signal, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
signal.pause()
"""


@contextmanager
def started(code: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A Python process that has said its line; the process and the words of that line."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()
        finally:
            kill_all(process)


def kill_all(leader: subprocess.Popen[str]) -> None:
    """SIGKILL a process and its resource tracker at once."""
    if leader.poll() is None:
        family = psutil.Process(leader.pid).children(recursive=True)
        for process in family:
            process.send_signal(signal.SIGKILL)
        leader.kill()
        leader.wait()
        psutil.wait_procs(family, timeout=10)


@pytest.fixture
def made() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that has a block and a semaphore; neither outlives the test."""
    with started(MAKER) as (process, names):
        try:
            yield process, names
        finally:
            for name in names:
                (PLACE / name).unlink(missing_ok=True)


def test_what_a_killed_process_and_its_tracker_leave_is_removed(
    made: tuple[subprocess.Popen[str], list[str]],
) -> None:
    process, names = made
    files = shared_files([process.pid])
    assert sorted(files) == sorted(names)
    kill_all(process)
    assert all((PLACE / name).exists() for name in names), "its tracker has removed them itself"
    assert sorted(remove_shared(files)) == sorted(names)
    assert not any((PLACE / name).exists() for name in names)
    assert remove_shared(files) == []


def test_what_a_living_process_maps_stays(made: tuple[subprocess.Popen[str], list[str]]) -> None:
    process, (block, semaphore) = made
    files = shared_files([process.pid])
    with started(GUEST, str(PLACE / block)):
        kill_all(process)
        assert remove_shared(files) == [semaphore]
        assert (PLACE / block).exists()
    assert remove_shared(files) == [block]


def test_another_file_under_the_name_stays(
    made: tuple[subprocess.Popen[str], list[str]],
) -> None:
    process, (block, semaphore) = made
    files = shared_files([process.pid])
    kill_all(process)
    inode = files[block]
    (PLACE / block).rename(PLACE / f"{block}-old")
    (PLACE / block).write_bytes(b"a stranger's")
    try:
        assert (PLACE / block).stat().st_ino != inode
        assert remove_shared(files) == [semaphore]
        assert (PLACE / block).read_bytes() == b"a stranger's"
    finally:
        (PLACE / f"{block}-old").unlink()


def test_a_file_of_another_kind_is_not_taken_for_ours(tmp_path: Path) -> None:
    other = PLACE / f"not-multiprocessing-{tmp_path.name}"
    other.write_bytes(bytes(4096))
    try:
        with started(GUEST, str(other)) as (guest, _):
            assert shared_files([guest.pid]) == {}
    finally:
        other.unlink()


def test_a_process_that_is_gone_has_none() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert shared_files([gone.pid]) == {}
