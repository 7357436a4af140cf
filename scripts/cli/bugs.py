"""What becomes of an error that no code of ours expects: a bug, told in a line, its traceback kept.

Every other error is one of `fieldkit.errors` and passes.
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
    """Within it, an unexpected error leaves its traceback in RUN's log/ and ends with exit 1.

    `display` is closed in any case.
    """
    try:
        yield
    except FieldkitError:
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
    """Write the traceback being handled to the run's log/; return where it lies."""
    from scripts.run.folder import resolve_run

    log = resolve_run(run).log
    log.mkdir(parents=True, exist_ok=True)
    path = log / f"bug-{name}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    path.write_text(traceback.format_exc())
    return str(path)
