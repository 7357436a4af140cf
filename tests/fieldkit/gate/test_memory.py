"""Memory: measured, waited for within a bound, and its holders named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fieldkit.errors import Shortage, Unavailable
from fieldkit.gate import memory
from fieldkit.gate.memory import (
    GIB,
    Available,
    Reclaim,
    available,
    describe_holders,
    gpu_held_by,
    held_by,
    top_holders,
    total_host,
    wait_until_available,
)
from fieldkit.gate.nvidia import gpu_count, gpu_names
from tests.fieldkit.gate.fake_nvml import FakeNvml

alone = pytest.mark.alone

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


@alone
def test_a_holder_is_seen_with_what_only_its_end_would_free() -> None:
    with holder() as process:
        assert HELD <= held_by(process.pid) <= HELD + 100 * MIB
        named = {h.pid: h for h in top_holders(count=50)}
        assert named[process.pid].where == "host"
        assert "python" in named[process.pid].name
    assert held_by(process.pid) == 0


def test_a_holder_is_named_in_one_line_whatever_it_calls_itself() -> None:
    with subprocess.Popen(
        ["first\n\x1b[2J\tsecond\r"],
        executable="/bin/cat",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(1)  # it is cat by now: a name is written a moment after the exec
        (name,) = (h.name for h in top_holders(count=10_000) if h.pid == process.pid)
        process.communicate()
    assert name == "first ?[2J second"


@alone
def test_what_a_process_held_is_proven_to_come_back() -> None:
    with holder() as process:
        reclaim = Reclaim.measure([process.pid])
    reclaim.wait(margin=MARGIN, seconds=10, what="test")
    assert reclaim.held >= HELD


@alone
def test_memory_that_stays_away_is_a_shortage_that_names_the_holders() -> None:
    with holder() as process:
        reclaim = Reclaim.measure([process.pid])
        with pytest.raises(Shortage, match=r"waiting for it: .*largest holders: pid \d+ \("):
            reclaim.wait(margin=50 * MIB, seconds=0.0, what="waiting for it")
        assert process.poll() is None


@alone
def test_memory_that_a_stranger_took_is_a_shortage_that_names_it_and_leaves_it_alone() -> None:
    with holder() as stranger:

        def what_it_leaves() -> Available:
            return Available(HELD - held_by(stranger.pid), None)

        with pytest.raises(Shortage, match=rf"Nothing was ended.*pid {stranger.pid} \("):
            wait_until_available(MARGIN, None, seconds=0.5, what="the engine", probe=what_it_leaves)
        assert stranger.poll() is None
    wait_until_available(MARGIN, None, seconds=10, what="the engine", probe=what_it_leaves)


def test_more_than_the_host_has_is_a_shortage_after_the_bound() -> None:
    with pytest.raises(Shortage, match=r"the engine: .* needed of memory after 0 s"):
        wait_until_available(total_host() + 1, None, seconds=0.2, what="the engine")


@alone
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


def write_cgroup(folder: Path, limit: int | str, used: int) -> None:
    """One in which a MiB is pages of files that the kernel drops first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in {"memory.max": limit, "memory.current": used}.items():
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon {MIB}\ninactive_file {MIB}\n")


def in_cgroup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str) -> Path:
    """Have this process be in that one; the folder of the uppermost."""
    own = tmp_path / "self"
    own.write_text(f"4:memory:/elsewhere\n0::{path}\n")
    monkeypatch.setattr(memory, "_OWN_CGROUP", own)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    return tmp_path / "cgroup"


def test_what_a_container_may_still_take_is_all_that_is_available(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    top = in_cgroup(monkeypatch, tmp_path, "/")
    write_cgroup(top, 5 * MIB, 3 * MIB)
    assert available().host == 3 * MIB  # pages of files that the kernel drops first are free
    write_cgroup(top, "max", 3 * MIB)
    assert available().host > 5 * MIB
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "none")
    assert available().host > 5 * MIB


def test_a_job_may_take_what_its_cgroup_and_all_above_it_still_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    top = in_cgroup(monkeypatch, tmp_path, "/user.slice/job.scope")
    top.mkdir()  # the uppermost one of a host has no limit
    write_cgroup(top / "user.slice", 9 * MIB, 3 * MIB)
    write_cgroup(top / "user.slice" / "job.scope", 5 * MIB, 3 * MIB)
    assert available().host == 3 * MIB
    write_cgroup(top / "user.slice", 9 * MIB, 8 * MIB)  # others of the slice took it
    assert available().host == 2 * MIB
    write_cgroup(top / "user.slice" / "job.scope", "max", 3 * MIB)
    assert available().host == 2 * MIB


def test_a_limit_of_the_first_version_of_cgroups_counts_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    top = in_cgroup(monkeypatch, tmp_path, "/") / "memory"
    for folder, limit in ((top, 2**63 - 4096), (top / "elsewhere", 5 * MIB)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{3 * MIB}\n")
        (folder / "memory.stat").write_text(f"rss {MIB}\ntotal_inactive_file {MIB}\n")
    assert available().host == 3 * MIB
    shutil.rmtree(top / "elsewhere")  # as in a container, which sees its own as the uppermost
    assert available().host > 5 * MIB
    (top / "memory.limit_in_bytes").write_text(f"{4 * MIB}\n")
    assert available().host == 2 * MIB


@pytest.mark.parametrize("own", ["/../other.scope", "/gone.scope"])
def test_a_cgroup_that_is_not_mounted_leaves_the_limit_of_the_uppermost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str
) -> None:
    top = in_cgroup(monkeypatch, tmp_path, own)
    write_cgroup(top, 5 * MIB, 3 * MIB)
    assert available().host == 3 * MIB


def test_a_kernel_without_cgroups_sets_no_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_cgroup(monkeypatch, tmp_path, "/")
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "none")
    assert available().host > 5 * MIB


@pytest.mark.parametrize(
    ("visible", "total"),
    [(None, 4 * GIB), ("0", 4 * GIB), ("GPU-first,1", 4 * GIB), ("1,0", None), ("", None)],
)
def test_the_gpu_that_is_measured_is_the_one_that_cuda_takes(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, total: int | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert memory.gpu_total() == total
    assert (available().gpu is None) == (total is None)


def test_who_holds_gpu_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert gpu_names() == ["first", "second"]
    assert gpu_held_by([os.getpid()]) == GIB
    assert gpu_held_by([1]) == 0
    assert f"pid {os.getpid()} (" in describe_holders()
    assert describe_holders().endswith("0.0 GiB gpu")


class EightGpus(FakeNvml):
    """Eight GPUs of 80 GiB. This process holds 30 GiB on the last two, until it is told to end."""

    def __init__(self) -> None:
        self.held = dict.fromkeys((6, 7), 30 * GIB)

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return f"number {gpu}"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[SimpleNamespace]:
        held = self.held.get(gpu)
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=held)] if held else []

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(free=80 * GIB - self.held.get(gpu, 0), total=80 * GIB)


def test_what_was_held_on_several_gpus_has_to_come_back_on_those_and_on_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = EightGpus()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    measured = Reclaim.measure([os.getpid()])
    reclaim = replace(measured, held=0)  # this process lives on, with its host memory
    assert (reclaim.gpus, reclaim.held_gpu) == ((6, 7), 60 * GIB)
    assert reclaim.before.gpu == 100 * GIB
    nvml.held[6] = 0
    with pytest.raises(Shortage, match=r"130.00 GiB available, 159.00 GiB needed of GPU memory"):
        reclaim.wait(margin=GIB, seconds=0, what="test")
    nvml.held = {0: 70 * GIB}  # somebody else has begun to work on another one
    reclaim.wait(margin=GIB, seconds=0, what="test")


def test_a_gpu_that_tells_no_bytes_shares_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unified(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
            return SimpleNamespace(free=0, total=0)

    monkeypatch.setitem(sys.modules, "pynvml", Unified())
    assert memory.gpu_total() is None
    assert available().gpu is None
    measured = Reclaim.measure([os.getpid()])
    assert (measured.before.gpu, measured.held_gpu) == (None, GIB)


@pytest.mark.parametrize("lacks", ["driver", "gpu", "binding"])
def test_a_box_without_a_gpu_has_no_gpu_memory_and_no_holders_of_it(
    monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    class Bare(FakeNvml):
        def nvmlInit(self) -> None:
            if lacks == "driver":
                raise self.NVMLError

        def nvmlDeviceGetCount(self) -> int:
            raise self.NVMLError

    monkeypatch.setitem(sys.modules, "pynvml", None if lacks == "binding" else Bare())
    assert (gpu_names(), gpu_count()) == ([], 0)
    if lacks != "gpu":
        assert available().gpu is None
    assert gpu_held_by([os.getpid()]) == 0


def test_where_a_driver_cannot_be_asked_no_gpu_memory_passes_for_available(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "version"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(memory, "_DRIVER", driver)
    assert wait_until_available(0, GIB, seconds=1, what="the engine").gpu is None
    driver.touch()
    with pytest.raises(Unavailable, match=r"^the engine: .* `pip install nvidia-ml-py`"):
        wait_until_available(0, GIB, seconds=1, what="the engine")
    assert wait_until_available(0, None, seconds=1, what="the engine").gpu is None


def test_of_a_process_that_shows_its_pages_to_nobody_else_what_is_private_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def others(pid: int, file: str) -> bytes:
        return b"" if file == "smaps_rollup" else b"9000 5000 1000 1 0 1 0"

    monkeypatch.setattr(memory, "read_proc", others)
    assert memory.held_by(1) == 4000 * os.sysconf("SC_PAGE_SIZE")


def test_a_driver_that_tells_nobody_who_holds_its_memory_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(FakeNvml):
        def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[SimpleNamespace]:
            raise self.NVMLError("Not Supported")

    monkeypatch.setitem(sys.modules, "pynvml", Silent())
    assert gpu_held_by([os.getpid()]) == 0
    assert describe_holders().endswith(" GiB host")
    assert Reclaim.measure([os.getpid()]).held_gpu == 0


def test_figures_that_another_program_waits_with_are_the_same() -> None:
    reclaim = Reclaim(frozenset({3, 2}), Available(5, 7), held=11, held_gpu=13, others=17)
    assert Reclaim.read(json.loads(json.dumps(reclaim.plain()))) == reclaim
    several = replace(reclaim, gpus=(0, 3))
    assert Reclaim.read(json.loads(json.dumps(several.plain()))) == several
    assert reclaim.all_held == 24


@alone
def test_what_was_held_on_a_gpu_without_memory_of_its_own_has_to_come_back_to_the_host() -> None:
    now = available()
    # What other programs hold is measured too: what they take meanwhile is not missing.
    there = replace(Reclaim.measure([]), before=Available(now.host, None))
    there.wait(margin=GIB, seconds=5, what="test")
    gone = replace(there, held_gpu=now.host + 2 * GIB)
    with pytest.raises(Shortage, match="needed of memory"):
        gone.wait(margin=GIB, seconds=0, what="test")


def test_nothing_is_signalled_by_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    for module, name in ((os, "kill"), (os, "killpg"), (signal, "pidfd_send_signal")):
        monkeypatch.setattr(module, name, lambda *words: sent.append(words))
    with pytest.raises(Shortage, match="Nothing was ended"):
        wait_until_available(10**18, None, seconds=0, what="test")
    assert sent == []
