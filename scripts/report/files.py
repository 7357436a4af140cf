"""Writes the findings to evidence.json, evidence.md, curve.png, report.html and the step files.

Each file is written atomically and can be written again at any time. A file that was made from
more than this copy of the run has (a committed night lacks the episodes of training) is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fieldkit.errors import FieldkitError
from fieldkit.files.atomic import write_json, write_text
from scripts.evidence.findings import STEPS, Findings
from scripts.evidence.stored import HELD_OUT
from scripts.evidence.text_page import markdown, plain_page
from scripts.report.curve_png import write_curve
from scripts.report.page import FILE_NAME, render
from scripts.report.step_files import write_step_files
from scripts.run.folder import refuse_run_file


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def write_files(f: Findings, tell: Callable[[str], None] = _to_stderr) -> list[Path]:
    """Write the files and return the paths of those written; curve.png only if a step was played.

    A file that held more is kept, and `tell` says so. Raises `BadInput` if there is no evidence. A
    failure to make report.html is only reported through `tell`, so it does not end a night.
    """
    values, text = plain_page(f), markdown(f)
    makers: dict[str, Callable[[Path], object]] = {
        f.folder.evidence.name: lambda path: write_json(path, values),
        "evidence.md": lambda path: write_text(path, text),
        "curve.png": lambda path: write_curve(path, f.steps, f.name),
        FILE_NAME: lambda path: write_text(path, render(f, write_step_files(f))),
    }
    if len(f.steps) <= 1:
        del makers["curve.png"]
    written, kept = [], {}
    for name, make in makers.items():
        path = f.path / name
        if why := _why_kept(f, path):
            kept[name] = why
            continue
        try:
            make(path)
        except FieldkitError as e:
            if name != FILE_NAME:
                raise
            tell(f"{name} was not written: {e}")
        else:
            written.append(path)
    if kept:
        tell(f"kept as they were: {', '.join(kept)} ({kept.popitem()[1]})")
    return written


def write_report(
    f: Findings, out: Path | None = None, tell: Callable[[str], None] = _to_stderr
) -> Path:
    """Write the page to `out`, or to report.html in the run's folder; return its path.

    The page names every gap. A page of the run that held more is kept, and `tell` says so. Raises
    `BadInput` where `out` is another file of a run.
    """
    own = f.path / FILE_NAME
    path = out or own
    refuse_run_file(path, "--out", own)
    in_run = path.resolve() == own.resolve()
    if in_run and (why := _why_kept(f, path)):
        tell(f"kept as it was: {why}; `grpo report {f.typed} --out FILE` writes a new page")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another folder may hold the step files of another run, so a page there links none.
    write_text(path, render(f, write_step_files(f) if in_run else ()))
    return path


def _why_kept(f: Findings, path: Path) -> str:
    """Why the file at `path` stays as it is; empty if it may be written.

    In a copy that cannot go on every file stays. A night that goes on gets new pages although
    bundles of it were lost, as long as its held-out episodes are there.
    """
    if not path.is_file():
        return ""
    if unread := next((gap.why for gap in f.gaps if gap.what == STEPS), ""):
        return unread
    lacks = [what for what in f.absent if f.is_copy or what == HELD_OUT]
    if f.evidence is None and f.folder.evidence.is_file():
        lacks.append("the numbers of evidence.json")
    what = " and ".join(lacks)
    return f"this copy of the run lacks {what}" if what else ""
