"""Memory: measured, waited for within a bound, and its holders named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fieldkit.errors import Shortage
from fieldkit.memory import (
    GIB,
    Available,
    Reclaim,
    available,
    held_by,
    top_holders,
    total_host,
    wait_until_available,
)

MIB = 1024**2
HELD = 2048 * MIB
MARGIN = 3 * HELD // 4
"""The machine lives on meanwhile: what ended just before is still being written to disk, and what
the kernel takes for itself belongs to no process. Up to 400 MiB were seen to come and go."""

# Touches every page, so that the memory is really held; ends when its input is closed.
HOLD = f"import sys; block = b'x' * {HELD}; print('ready', flush=True); sys.stdin.read()"


@contextmanager
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds HELD bytes."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process


def test_available_lies_between_nothing_and_what_the_host_has() -> None:
    assert 0 < available().host <= total_host()


def test_a_holder_is_seen_with_what_only_its_end_would_free() -> None:
    with holder() as process:
        assert HELD <= held_by(process.pid) <= HELD + 100 * MIB
        named = {h.pid: h for h in top_holders(count=50)}
        assert named[process.pid].where == "host"
        assert "python" in named[process.pid].name
    assert held_by(process.pid) == 0


def test_what_a_process_held_is_proven_to_come_back() -> None:
    with holder() as process:
        reclaim = Reclaim.measure([process.pid])
    reclaim.wait(margin=MARGIN, seconds=10, what="test")
    assert reclaim.held >= HELD


def test_memory_that_stays_away_is_a_shortage_that_names_the_holders() -> None:
    with holder() as process:
        reclaim = Reclaim.measure([process.pid])
        with pytest.raises(Shortage, match=r"waiting for it: .*largest holders: pid \d+ \("):
            reclaim.wait(margin=50 * MIB, seconds=0.0, what="waiting for it")
        assert process.poll() is None


def test_what_others_take_meanwhile_is_not_missing() -> None:
    with holder() as process:
        reclaim = Reclaim.measure([process.pid])
    with holder():
        reclaim.wait(margin=MARGIN, seconds=10, what="test")


def test_the_wait_ends_as_soon_as_the_memory_is_there() -> None:
    answers = iter([Available(1, None), Available(1, None), Available(5, None)])
    began = time.monotonic()
    now = wait_until_available(4, None, seconds=60, what="test", probe=lambda: next(answers))
    assert now.host == 5
    assert time.monotonic() - began < 10


def test_gpu_memory_is_waited_for_where_there_is_a_gpu() -> None:
    with pytest.raises(Shortage, match=r"1\.00 GiB available, 2\.00 GiB needed of GPU memory"):
        wait_until_available(0, 2 * GIB, seconds=0, what="test", probe=lambda: Available(GIB, GIB))


def test_gpu_memory_is_not_asked_for_where_gpu_and_host_share_it() -> None:
    now = wait_until_available(
        0, 2 * GIB, seconds=0, what="test", probe=lambda: Available(GIB, None)
    )
    assert now.gpu is None


def test_nothing_is_signalled_by_a_shortage() -> None:
    with pytest.raises(Shortage, match="Nothing was ended"):
        wait_until_available(10**18, None, seconds=0, what="test")
    os.kill(os.getpid(), 0)
