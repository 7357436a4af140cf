"""Reports an unexpected error as a bug: one line for the person, the traceback in the run's log/.

Errors of `fieldkit.errors` pass unchanged.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fieldkit.errors import FieldkitError, foreseen

if TYPE_CHECKING:
    from scripts.base.display import Display


@contextlib.contextmanager
def reporting_bugs(run: str, display: Display | None) -> Iterator[None]:
    """In this block, an unexpected error writes its traceback to RUN's log/ and exits with code 1.

    Closes `display` in every case.
    """
    try:
        yield
    except (FieldkitError, BrokenPipeError):
        raise
    except Exception as e:
        if (known := foreseen(e)) is not None:
            raise known from e
        path = _keep_traceback(run, type(e).__name__)
        print(f"error: a bug: {type(e).__name__}: {e}; its traceback: {path}", file=sys.stderr)
        raise SystemExit(FieldkitError.exit_code) from e
    finally:
        if display is not None:
            display.close()


def _keep_traceback(run: str, name: str) -> str:
    """Write the current traceback to the run's log/; return its path."""
    from scripts.run.folder import resolve_run

    log = resolve_run(run).log
    log.mkdir(parents=True, exist_ok=True)
    path = log / f"bug-{name}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    path.write_text(traceback.format_exc(), encoding="utf-8", errors="backslashreplace")
    return str(path)
