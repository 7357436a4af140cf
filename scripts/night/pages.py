"""The tables and the page of a night, as its loop shows and writes them.

What makes them is imported when they are made: a loop starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fieldkit.errors import BadInput
from scripts.base.events import Tell, detail, table
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder

Note = Callable[[str], None]


def show_evaluation(folder: RunFolder, config: RunConfig, tell: Tell, note: Note) -> None:
    """Show the main table before the first trained step, the whole page afterwards; write it."""
    from scripts.evidence.findings import read_findings
    from scripts.evidence.tables import main_table
    from scripts.evidence.text_page import rich_page
    from scripts.report.files import write_files
    from scripts.words.text import as_text

    findings = read_findings(folder, config)
    evidence = findings.require_evidence()
    trained = len(findings.steps) > 1
    shown = rich_page(findings) if trained else main_table(evidence).rich()
    table(tell, as_text(shown))
    _tell(write_files(findings, note), tell)


def write_page(folder: RunFolder, config: RunConfig, tell: Tell, note: Note) -> None:
    """Write the page with the steps since the last evaluation and how the night ended, and without
    an evaluation too."""
    from scripts.evidence.findings import read_findings
    from scripts.report.files import write_files, write_report

    findings = read_findings(folder, config)
    try:
        written = write_files(findings, note)
    except BadInput:  # without evidence, for which the page has a gap
        written = [write_report(findings, tell=note)]
    _tell(written, tell)


def _tell(written: Sequence[Path], tell: Tell) -> None:
    for path in written:
        detail(tell, f"written: {path}")
