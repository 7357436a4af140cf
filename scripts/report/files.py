"""The files that findings are written to: evidence.json, evidence.md, curve.png and report.html.

Each is written whole and can be written again at any time. What is in it is decided by who makes
it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fieldkit.errors import FieldkitError
from scripts.evidence.findings import Findings
from scripts.evidence.text_page import write_page
from scripts.report.curve_png import write_curve
from scripts.report.page import write_report


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def write_files(f: Findings, tell: Callable[[str], None] = _to_stderr) -> list[Path]:
    """Write them, curve.png once a step was played; return the paths.

    Raises `BadInput` where there is no evidence. A page that cannot be made is told as a line and
    ends no night.
    """
    written = write_page(f)
    if len(f.steps) > 1:
        written.append(write_curve(f.path / "curve.png", f.steps, f.name))
    try:
        written.append(write_report(f))
    except FieldkitError as e:
        tell(f"report.html was not written: {e}")
    return written
