"""A child's exit code as the exception that it stands for.

The codes are the contract between our programs, so this is the one place that reads them; the text
that comes along is for the person and decides nothing.
"""

from __future__ import annotations

from pathlib import Path

from fieldkit.errors import FieldkitError, Shortage

KILLED = 137
"""128 + SIGKILL: with nobody else about, that was the kernel's out-of-memory killer."""

_BY_CODE = {kind.exit_code: kind for kind in FieldkitError.__subclasses__()}


class ChildBug(RuntimeError):
    """A child ended with an exit code that nobody foresaw; its log holds the traceback."""


def raise_code(code: int, text: str, who: str, log: Path) -> None:
    """Raise what `code` stands for, telling `text` (or where the log is); 0 raises nothing."""
    if code == 0:
        return
    where = f"its log: {log}"
    if code == KILLED:
        raise Shortage(
            f"{who} was killed (exit 137), which is how the kernel ends a program when memory is "
            f"short. What was finished is kept; make room and run the same command again; {where}"
        )
    if code in _BY_CODE:
        raise _BY_CODE[code](text or f"{who} ended with exit code {code}; {where}")
    raise ChildBug(f"{who} ended with exit code {code}: {text or 'no message'}; {where}")
