"""A tree of files that an untrusted policy left behind, read beneath its root and within bounds.

Nothing in it may make the reader follow a link, block on a pipe, open a device or read without
bound. An obstacle in the tree raises `Unmet`, which says why; an error of the machine stays an
`OSError`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

OF_THE_TREE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV),
    *(errno.EACCES, errno.EPERM),
    errno.EAGAIN,  # another process has a lease on the file
)
"""How the kernel refuses what a policy can put into its tree, also between a look at a name and its
opening. Any other error (no descriptors, a disk that fails) is the machine's."""


class Unmet(Exception):
    """What keeps an assertion from holding; its text becomes the result's detail."""


class Absent(Unmet):
    """Nothing of that name is there."""


def _descend(root_fd: int, path: str) -> tuple[int, str]:
    """An fd of the folder that holds `path`, and the last component. Follows no link.

    A folder that its owner cannot search is an obstacle also where the grader is root, so that a
    grade does not depend on who grades.
    """
    *folders, name = path.split("/")
    fd = os.dup(root_fd)
    try:
        for folder in folders:
            _need_search(fd)
            status = _lstat(folder, fd)
            if stat.S_ISLNK(status.st_mode):
                raise Unmet(f"{folder} is a symbolic link")
            if not stat.S_ISDIR(status.st_mode):
                raise Absent(f"{folder} is not a folder")
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(folder, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
        _need_search(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, name


def _need_search(fd: int) -> None:
    if not os.fstat(fd).st_mode & stat.S_IXUSR:
        raise Unmet("a folder on the way cannot be searched")


def _lstat(name: str, folder_fd: int) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        raise Absent("no such file") from None


def _need_regular(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds: list[tuple[Callable[[int], bool], str]] = [
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    ]
    found = next((name for test, name in kinds if test(mode)), "a device")
    raise Unmet(f"is {found}, not a file")


class Tree:
    """The tree below one root, open from `with` to its end. Raises `OSError` without a root."""

    def __init__(self, root: Path) -> None:
        self._root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root_fd)

    def need_absent(self, path: str) -> None:
        """Raise `Unmet` where anything of that name is there."""
        try:
            self._status(path)
        except Absent:
            return
        raise Unmet("is still there")

    def need_present(self, path: str) -> None:
        """Raise `Unmet` where there is neither a regular file nor a folder of that name."""
        mode = self._status(path).st_mode
        if not stat.S_ISDIR(mode):
            _need_regular(mode)

    def _status(self, path: str) -> os.stat_result:
        folder_fd, name = _descend(self._root_fd, path)
        try:
            return _lstat(name, folder_fd)
        finally:
            os.close(folder_fd)

    def read(self, path: str, limit: int) -> bytes:
        """The bytes of a regular file. Raises `Unmet`, also where there are more than `limit`."""
        folder_fd, name = _descend(self._root_fd, path)
        try:
            status = _lstat(name, folder_fd)
            # Looked at before it is opened: opening a device or a pipe can have an effect.
            _need_regular(status.st_mode)
            if not status.st_mode & stat.S_IRUSR:
                raise Unmet("cannot be read (permissions)")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=folder_fd)
        finally:
            os.close(folder_fd)
        try:
            _need_regular(os.fstat(fd).st_mode)  # another may have taken its name since the look
            with open(fd, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        finally:
            os.close(fd)
        if len(data) > limit:
            raise Unmet(f"is larger than {limit} bytes")
        return data
