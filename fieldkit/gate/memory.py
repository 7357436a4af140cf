"""How much memory is available, which processes hold it, and waiting until it has come back.

A phase must not start while the memory of the one before is still held: on a machine whose GPU and
CPU share memory the desktop freezes. The gate measures (it never parses `free`), waits within a
bound, and then names the largest holders. It signals no process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fieldkit.errors import Shortage, Unavailable
from fieldkit.gate import nvidia
from fieldkit.gate.patience import Patience
from fieldkit.process.owned import read_proc

GIB = 1024**3
"""Bytes."""
_LONGEST_LOOK_SECONDS = 5.0  # a look takes milliseconds; more was a standstill
_POLL_SECONDS = 0.2  # the kernel offers no event for "memory became free"
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class _Version:
    """A version of cgroups: its controller in /proc/self/cgroup, where it is mounted below
    `_CGROUP`, its files, and the line of memory.stat with pages of files that the kernel would drop
    first."""

    controller: str
    mount: str
    limit: str
    used: str
    droppable: str


_VERSIONS = (
    _Version("", "", "memory.max", "memory.current", "inactive_file"),
    _Version(
        "memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    ),
)


@dataclass(frozen=True)
class Available:
    """Available bytes. gpu: None without a GPU that has memory of its own, and where the package
    nvidia-ml-py, which asks the driver, is missing."""

    host: int
    gpu: int | None


@dataclass(frozen=True)
class Holder:
    """A process and the bytes that its end would free. where: "host" or "gpu"."""

    pid: int
    name: str
    held: int
    where: str


def available() -> Available:
    """Available memory, on the host (within this cgroup's limit) and on the GPU."""
    host, limit = psutil.virtual_memory().available, _cgroup_available()
    gpu = _gpu_memory(_our_gpu)
    host = host if limit is None else min(host, limit)
    return Available(host, None if gpu is None else int(gpu.free))


def total_host() -> int:
    """Bytes of memory the host has."""
    return int(psutil.virtual_memory().total)


def _cgroup_available() -> int | None:
    """What this process's cgroup, in either version, and those above it still allow; None where
    none sets a limit.

    A container is often the uppermost one that it sees; a service or a batch job is below others.
    """
    allowed = (
        _allowed_by(_CGROUP / version.mount / part, version)
        for version in _VERSIONS
        for own in [_own_cgroup(version)]
        for part in (own, *own.parents)
    )
    return min((a for a in allowed if a is not None), default=None)


def _own_cgroup(version: _Version) -> Path:
    """This process's cgroup below the uppermost one that is mounted; that one itself where there is
    none of this version, or where it is outside of what is mounted."""
    try:
        lines = _OWN_CGROUP.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return Path()
    fields = (line.split(":", 2) for line in lines)
    paths = (path for _, names, path in fields if version.controller in names.split(","))
    own = Path(next(paths, "").lstrip("/"))
    return Path() if ".." in own.parts else own


def _allowed_by(cgroup: Path, version: _Version) -> int | None:
    """What one cgroup still allows. Pages of files that the kernel would drop first do not count as
    used. Version 1 without a limit has one that no machine reaches."""
    try:
        limit = (cgroup / version.limit).read_text().strip()
        used = int((cgroup / version.used).read_text())
        stat = dict(s.split() for s in (cgroup / "memory.stat").read_text().splitlines())
    except FileNotFoundError:
        return None
    if limit == "max":
        return None
    return int(limit) - used + int(stat[version.droppable])


def _cannot_ask() -> bool:
    """Whether there is an NVIDIA driver and no binding."""
    return nvidia.binding() is None and _DRIVER.is_file()


def _our_gpu(nvml: Any) -> Any:
    """The GPU that CUDA calls device 0. Raises `NVMLError` where there is none."""
    return nvidia.handle(next(iter(nvidia.visible_gpus()), ""), nvml)


def _gpu_memory(find: Callable[[Any], Any]) -> Any:
    """Free and total bytes of the GPU that `find` takes from NVML. None without one, or where it
    shares the host's memory."""
    nvml = nvidia.nvml()
    if nvml is None:
        return None
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(find(nvml))
    except nvml.NVMLError:
        # Chips with unified memory (GB10) answer "not supported", or 0 bytes with some drivers: the
        # host's figure holds for them.
        return None
    return found if found.total else None


def _free_together(gpus: Iterable[int]) -> int | None:
    """Free bytes of these GPUs, by NVML's numbers; None for none, and without memory of theirs."""
    found = [_gpu_memory(partial(nvidia.handle, str(i))) for i in gpus]
    return sum(int(each.free) for each in found) if found and all(found) else None


def gpu_total() -> int | None:
    """Bytes that our GPU has; None as in `Available.gpu`."""
    found = _gpu_memory(_our_gpu)
    return None if found is None else int(found.total)


def held_by(pid: int) -> int:
    """Host bytes that ending `pid` would free: its anonymous and shared-memory pages.

    Pages of mapped files (libraries, weights) are left out: the kernel counts them as available
    already. Shared pages are split among those who map them (Pss); of another user's process they
    are left out too.
    """
    wanted = {b"Pss_Anon", b"Pss_Shmem"}
    lines = read_proc(pid, "smaps_rollup").splitlines()
    if not lines:  # another user's, of which less is told
        return _private(pid) * resource.getpagesize()
    pairs = (line.partition(b":") for line in lines)
    return sum(int(value.split()[0]) * 1024 for key, _, value in pairs if key in wanted)


def _private(pid: int) -> int:
    """Anonymous pages of a process; 0 for one that is gone."""
    resident, shared = read_proc(pid, "statm").split()[1:3] or (0, 0)
    return int(resident) - int(shared)


def gpu_held_by(pids: Iterable[int]) -> int:
    """GPU bytes that these processes hold."""
    return sum(_held_by_gpu(pids).values())


def _held_by_gpu(pids: Iterable[int]) -> dict[int, int]:
    """Bytes that these processes hold on each GPU on which they hold any, by NVML's numbers."""
    wanted, held = set(pids), dict[int, int]()
    for gpu, holder in _on_gpus():
        if holder.pid in wanted and holder.held:
            held[gpu] = held.get(gpu, 0) + holder.held
    return held


@dataclass(frozen=True)
class Reclaim:
    """Figures from before some processes are ended, to prove afterwards that their memory is back.

    pids: those processes. gpus: NVML's numbers of the GPUs on which they held memory. before:
    memory available then, on the host and on those GPUs together. held, held_gpu: bytes that they
    held. others: bytes that all other processes held, and all shared memory: what those take
    meanwhile is not missing.
    """

    pids: frozenset[int]
    before: Available
    held: int
    held_gpu: int
    others: int
    gpus: tuple[int, ...] = ()

    @classmethod
    def measure(cls, pids: Iterable[int]) -> Reclaim:
        """Measure before ending `pids`."""
        ending = frozenset(pids)
        held_gpu = _held_by_gpu(ending)
        return cls(
            pids=ending,
            before=Available(available().host, _free_together(held_gpu)),
            held=sum(held_by(pid) for pid in ending),
            held_gpu=sum(held_gpu.values()),
            others=_taken_without(ending),
            gpus=tuple(held_gpu),
        )

    @property
    def all_held(self) -> int:
        """Bytes that they held on host and GPU together."""
        return self.held + self.held_gpu

    def plain(self) -> dict[str, Any]:
        """As JSON values, for the program that waits once the processes are gone."""
        return {**asdict(self), "pids": sorted(self.pids)}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Reclaim:
        """Inverse of `plain`."""
        before, gpus = Available(**value["before"]), tuple(value.get("gpus", ()))
        return cls(**{**value, "pids": frozenset(value["pids"]), "before": before, "gpus": gpus})

    def wait(self, *, margin: int, seconds: float, what: str) -> None:
        """Wait until all but `margin` bytes came back. Raises `Shortage` after `seconds`."""

        def probe() -> Available:
            taken = max(0, _taken_without(self.pids) - self.others)
            return Available(available().host + taken, _free_together(self.gpus))

        gpu = self.before.gpu
        # Where the GPU has no memory of its own, what was held on it comes back to the host.
        held = self.held + (self.held_gpu if gpu is None else 0)
        wait_until_available(
            self.before.host + held - margin,
            None if gpu is None else gpu + self.held_gpu - margin,
            seconds=seconds,
            what=what,
            ended="Nobody else's process was ended",
            probe=probe,
        )


def _taken_without(left_out: frozenset[int]) -> int:
    """Anonymous memory of all processes but `left_out`, one cheap read each (no smaps), and files
    in memory, which belong to no process.
    """
    pids = (pid for pid in psutil.pids() if pid not in left_out)
    private = sum(map(_private, pids))
    return private * resource.getpagesize() + int(psutil.virtual_memory().shared)


def top_holders(count: int = 5) -> list[Holder]:
    """The processes that hold most, host and GPU apart, largest first."""
    host = [Holder(pid, _name(pid), held_by(pid), "host") for pid in psutil.pids()]
    largest = sorted(host, key=lambda h: -h.held)[:count]
    on_gpus = (holder for _, holder in _on_gpus())
    return largest + sorted(on_gpus, key=lambda h: -h.held)[:count]


def _on_gpus() -> list[tuple[int, Holder]]:
    """NVML's number of a GPU, and a process there. None where the driver tells nobody, as under WSL
    and in some containers."""
    nvml = nvidia.nvml()
    if nvml is None:
        return []
    try:
        return [
            (i, Holder(process.pid, _name(process.pid), int(process.usedGpuMemory or 0), "gpu"))
            for i, gpu in enumerate(nvidia.handles(nvml))
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        ]
    except nvml.NVMLError:
        return []


def _name(pid: int) -> str:
    """A process's command, or its title, on one line and without control characters."""
    text = read_proc(pid, "cmdline") or read_proc(pid, "comm") or b"ended"
    words = text.decode(errors="replace").replace("\0", " ").split()
    return "".join(c if c.isprintable() else "?" for c in " ".join(words))[:60]


def describe_holders(count: int = 5) -> str:
    """`top_holders` as one line for an error message."""
    return "; ".join(
        f"pid {h.pid} ({h.name}) {h.held / GIB:.1f} GiB {h.where}" for h in top_holders(count)
    )


def wait_until_available(
    host: int,
    gpu: int | None,
    *,
    seconds: float,
    what: str,
    ended: str = "Nothing was ended",
    probe: Callable[[], Available] = available,
) -> Available:
    """Wait up to `seconds` until `host` and `gpu` bytes are available; return the figures then.

    Raises `Shortage` that begins with `what` (who needs the memory) and holds the figures, what was
    `ended` and the top holders. With a `gpu` of None, or on a machine without GPU memory of its
    own, nothing is asked of the GPU; raises `Unavailable` where there is a driver to ask and no
    nvidia-ml-py to ask it with. `probe` measures.

    >>> now = wait_until_available(64 * 1024**2, None, seconds=5, what="the trainer")
    >>> now.host >= 64 * 1024**2
    True
    """
    if gpu is not None and _cannot_ask():
        raise Unavailable(
            f"{what}: the memory of the NVIDIA GPU cannot be measured: `pip install nvidia-ml-py`"
        )
    patience = Patience(seconds, _LONGEST_LOOK_SECONDS)
    while True:
        now = probe()
        if now.host >= host and (gpu is None or now.gpu is None or now.gpu >= gpu):
            return now
        if patience.over():
            break
        time.sleep(_POLL_SECONDS)
    on_gpu = "" if gpu is None or now.gpu is None else _short(now.gpu, gpu, "of GPU memory, ")
    raise Shortage(
        f"{what}: {on_gpu}{_short(now.host, host, 'of memory')} after {seconds:.0f} s. "
        f"{ended}. The largest holders: {describe_holders()}. "
        "End what is not needed and run the same command again."
    )


def _short(there: int, needed: int, what: str) -> str:
    return f"{there / GIB:.2f} GiB available, {needed / GIB:.2f} GiB needed {what}"
