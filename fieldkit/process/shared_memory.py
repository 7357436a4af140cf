"""Files in /dev/shm that processes share, and their removal once those processes are gone.

Python's multiprocessing makes them, and its resource tracker removes them when a process was
killed. Where the tracker was killed too, they keep their memory until the next boot. Their names do
not say whose they are; the memory maps of living processes do, so the owner is written down while
they live. Nothing is removed that a living process maps.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from fieldkit.process.owned import read_proc

PLACE = Path("/dev/shm")
"""Where the C library keeps shared memory and named semaphores."""

_NAMES = ("psm_", "sem.mp-")  # multiprocessing: blocks of shared memory, and semaphores

_DEVICE, _INODE = 3, 4  # of a line of /proc/PID/maps, counted from 0


def shared_files(pids: Iterable[int]) -> dict[str, int]:
    """Name -> inode of this user's multiprocessing files that these processes map.

    Compared by inode: the maker of a semaphore maps it under the C library's temporary name.
    """
    mapped = {inode for pid in pids for inode in _mapped(pid)}
    return {name: inode for name, inode in _there().items() if inode in mapped}


def remove_shared(files: Mapping[str, int]) -> list[str]:
    """Remove those of `shared_files` that still exist and that no process maps; return their
    names."""
    there = _there()
    left = {name: inode for name, inode in files.items() if there.get(name) == inode}
    if not left:
        return []
    mapped = {inode for pid in psutil.pids() for inode in _mapped(pid)}
    gone = [name for name, inode in left.items() if inode not in mapped]
    for name in gone:
        with contextlib.suppress(FileNotFoundError):
            (PLACE / name).unlink()
    return gone


def _there() -> dict[str, int]:
    """Name -> inode of this user's files of multiprocessing."""
    found = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(PLACE) as entries:
        for entry in entries:
            if entry.name.startswith(_NAMES):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                        found[entry.name] = status.st_ino
    return found


def _mapped(pid: int) -> set[int]:
    """Inodes of the files there that a process maps."""
    lines = read_proc(pid, "maps").splitlines()
    if not lines or not PLACE.is_dir():
        return set()
    device = PLACE.stat().st_dev
    name = f"{os.major(device):02x}:{os.minor(device):02x}".encode()
    fields = (line.split(maxsplit=_INODE + 1) for line in lines if name in line)
    return {int(f[_INODE]) for f in fields if f[_DEVICE] == name}
