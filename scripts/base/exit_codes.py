"""Turns a child's exit code into the matching exception, and an exception into what the journal
says of it.

Only this module interprets exit codes. The text of an error is for the person and decides nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldkit.errors import (
    BadInput,
    FieldkitError,
    Interrupted,
    NotOwner,
    PoolConverged,
    Shortage,
    Unavailable,
    foreseen,
)

KILLED = (137, 143)
"""128 + SIGKILL, usually the kernel's out-of-memory killer; 128 + SIGTERM, which a guard of memory
sends first."""

_BY_CODE = {
    kind.exit_code: kind
    for kind in (BadInput, PoolConverged, Unavailable, Shortage, NotOwner, Interrupted)
}
"""The kinds by name: another class may share its code with one of them."""


def killed(who: str, code: int) -> str:
    """The sentence about a child that ended with one of `KILLED`."""
    return (
        f"{who} was killed (exit {code}), which is how the kernel, or a guard of memory such as"
        " earlyoom, ends a program when memory is short."
    )


class Killed(Shortage):
    """A child ended with one of `KILLED`."""


class ChildBug(RuntimeError):
    """A child ended with an unknown exit code; its log holds the traceback."""


def raise_code(code: int, text: str, who: str, log: Path) -> None:
    """Raise the error for `code` with `text` (or the path of the log); 0 raises nothing."""
    if code == 0:
        return
    where = f"its log: {log}"
    if code in KILLED:
        kept = "Finished work is kept; free memory and run the same command again"
        raise Killed(f"{killed(who, code)} {kept}; {where}")
    # Code 3 ends a night as a success, so it counts only with its evidence: a user's code that
    # calls `os._exit(3)` in a phase leaves none.
    if code in _BY_CODE and (text or code != PoolConverged.exit_code):
        raise _BY_CODE[code](text or f"{who} ended with exit code {code}; {where}")
    raise ChildBug(f"{who} ended with exit code {code}: {text or 'no message'}; {where}")


def as_journalled(error: BaseException) -> dict[str, Any]:
    """`exit` and `error` of the journal's line about a phase or a loop that this error ends."""
    code = (foreseen(error) or FieldkitError).exit_code
    return {"exit": code, "error": str(error) or repr(error)}
