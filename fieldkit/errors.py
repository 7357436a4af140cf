"""The exceptions that reach a person, and the exit codes they end with.

Every failure that the toolkit foresees is one of these classes, so that a caller decides by type
(or by exit code, across processes) and never by reading text. A message says what happened, where
(file:line, task, key) and the next command to type. Anything else that escapes is a bug: exit 1.
"""

from __future__ import annotations


class FieldkitError(Exception):
    """Base of every foreseen failure. `exit_code` is the process exit code it becomes."""

    exit_code = 1


class BadInput(FieldkitError):
    """A file, key or flag is wrong. Nothing was touched."""

    exit_code = 2


class PoolConverged(FieldkitError):
    """The pool carries no more signal: a clean ending, not a failure."""

    exit_code = 3


class Unavailable(FieldkitError):
    """The sandbox or the engine cannot be used here or now."""

    exit_code = 4


class Shortage(FieldkitError):
    """Memory or disk is short. Nothing that is not ours was ended."""

    exit_code = 5


class NotOwner(FieldkitError):
    """Another loop or another host owns this run."""

    exit_code = 6


class Interrupted(FieldkitError):
    """Stopped by the person; the same command goes on from here."""

    exit_code = 130
