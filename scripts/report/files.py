"""The evidence of a run folder: on the terminal, and as files beside the steps.

Finds what belongs to a run and hands it to `scripts.evidence.collect`; the numbers and words are
made there. Files are written whole and can be written again at any time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fieldkit.errors import FieldkitError
from fieldkit.records import StepSummary
from scripts.evidence.collect import Evidence, read_evidence, read_steps
from scripts.evidence.tables import main_table, rich_page, write_page
from scripts.report.curve_png import write_curve
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.words.text import as_text


def start_text(evidence: Evidence) -> str:
    """The main table as text: all there is to see in the evening."""
    return as_text(main_table(evidence).rich())


def page_text(evidence: Evidence, steps: Sequence[StepSummary]) -> str:
    """Every table, the milestones and the verdict, as text."""
    return as_text(rich_page(evidence, steps))


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def write_files(
    folder: RunFolder,
    config: RunConfig,
    tell: Callable[[str], None] = _to_stderr,
    evidence: Evidence | None = None,
) -> list[Path]:
    """Write evidence.json, evidence.md, report.html and, once a step was played, curve.png.

    evidence: where the caller has it already, since computing it takes longer than all the rest.
    Returns the paths. A page that cannot be made is told as a line and ends no night.
    """
    steps = read_steps(folder)
    evidence = evidence or read_evidence(folder, config)
    write_page(folder.path, evidence, steps, f"Run {folder.name}")
    written = [folder.path / "evidence.json", folder.path / "evidence.md"]
    if len(steps) > 1:
        curve = folder.path / "curve.png"
        write_curve(curve, steps, folder.name)
        written.append(curve)
    return written + _report(folder, config, evidence, tell)


def _report(
    folder: RunFolder, config: RunConfig, evidence: Evidence, tell: Callable[[str], None]
) -> list[Path]:
    from scripts.report.page import write_report

    try:
        return [write_report(folder, config, evidence)]
    except FieldkitError as e:
        tell(f"report.html was not written: {e}")
        return []
