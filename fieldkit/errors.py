"""The exceptions that reach a person, and the exit codes they end with.

Every expected failure is one of these classes, so that a caller decides by type (or by exit code,
across processes) and never by reading text. A message says what happened, where (file:line, task,
key) and the next command to type. Any other exception is a bug: exit 1.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

_END_CHARACTERS = 500


class FieldkitError(Exception):
    """Base of every expected failure. `exit_code` is the exit code of a process that it ends.

    Each can be pickled, whatever its class is made from, and so comes back from another process.
    """

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(cls: type[FieldkitError], args: tuple[Any, ...], own: Mapping[str, Any]) -> Any:
    """An error as it was pickled, without the arguments that its class would ask for."""
    made_by = OSError if issubclass(cls, OSError) else Exception  # whose layout an instance has
    error: Any = made_by.__new__(cls, *args)
    error.args = args
    error.__dict__.update(own)
    return error


class BadInput(FieldkitError, ValueError):
    """A file, key, flag or argument is wrong. Nothing was touched."""

    exit_code = 2


class MissingFile(BadInput, FileNotFoundError):
    """A file that has to be there is not."""


class AlreadySwapped(FieldkitError, RuntimeError):
    """A snapshot was entered while one is swapped into the same parameters."""


class PoolConverged(FieldkitError):
    """The pool carries no more signal: a clean ending, not a failure."""

    exit_code = 3


class Unavailable(FieldkitError):
    """The sandbox or the engine cannot be used here or now."""

    exit_code = 4


class Shortage(FieldkitError):
    """Memory or disk is short. No process that is not ours was ended."""

    exit_code = 5


class NotOwner(FieldkitError):
    """Another loop or another host owns this run."""

    exit_code = 6


class Interrupted(FieldkitError):
    """Stopped by the person; the same command continues from here."""

    exit_code = 130


def foreseen(error: BaseException) -> FieldkitError | None:
    """An error as one of ours: itself where it is one already, None where it is a bug.

    Any line that opens or writes a file can meet a full disk, a folder that cannot be written or
    too few file descriptors, so these are recognised in one place, where a command ends.
    """
    if isinstance(error, FieldkitError):
        return error
    if not isinstance(error, OSError):
        return None
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Shortage(
            f"{where}no space left on this disk. What was finished is kept; free some and run the "
            "same command again"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return BadInput(
            f"{where}cannot be written or read ({error.strerror}). What was finished is kept; make "
            "it writable for you and run the same command again"
        )
    if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST):
        reason = error.strerror or ""
        return BadInput(f"{where}{reason[:1].lower()}{reason[1:]}")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Shortage(
            f"{where}too many open files. What was finished is kept; run `ulimit -n 4096` and the "
            "same command again"
        )
    return None


def last_told(text: str) -> str:
    """The message of the last error that a program told as "error: …", as our commands do; without
    one the end of what it said."""
    _, told, message = text.rpartition("error: ")
    return message.strip() if told else text.strip()[-_END_CHARACTERS:]
