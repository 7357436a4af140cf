"""Writes the findings to evidence.json, evidence.md, curve.png and report.html.

Each file is written atomically and can be written again at any time.
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
    """Write the files and return their paths; curve.png only if a step was played.

    Raises `BadInput` if there is no evidence. A failure to make report.html is only reported
    through `tell`, so it does not end a night.
    """
    written = write_page(f)
    if len(f.steps) > 1:
        written.append(write_curve(f.path / "curve.png", f.steps, f.name))
    try:
        written.append(write_report(f))
    except FieldkitError as e:
        tell(f"report.html was not written: {e}")
    return written
