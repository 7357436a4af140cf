"""steps.csv and steps.json: the figures of every step, for a spreadsheet or a notebook.

They stand next to report.html, which links them. Every step has every column; a figure that a step
lacks is empty in the CSV and null in the JSON.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fieldkit.codec import SCHEMA
from fieldkit.files.atomic import write_json, write_text
from fieldkit.records import Signal, StepSummary
from scripts.evidence.findings import Findings
from scripts.evidence.step_figures import StepFigure, figures_of

CSV, JSON = "steps.csv", "steps.json"

Value = str | float | None


def write_step_files(f: Findings) -> tuple[str, ...]:
    """Write both files into the run folder atomically. Return the names of the data files there:
    these two, if a step was played, and evidence.json, if it is there."""
    stored = (f.folder.evidence.name,) if f.folder.evidence.is_file() else ()
    if not f.played:
        return stored
    parts = sorted({part for s in f.played for part in s.seconds})
    figures = figures_of(f.played)
    rows = [_row(s, figures, parts) for s in f.played]
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(f.path / CSV, out.getvalue())
    write_json(f.path / JSON, {"schema": SCHEMA, "run": f.name, "steps": rows})
    return (CSV, JSON, *stored)


def _row(s: StepSummary, figures: Sequence[StepFigure], parts: list[str]) -> dict[str, Value]:
    """One step: its figures by their tags, the groups by signal, and the seconds by part."""
    return {
        "step": s.step,
        "outcome": s.outcome.value,
        "episodes": s.n_trajectories,
        **{figure.tag: figure.read(s) for figure in figures},
        **{f"groups/{signal.lower()}": s.groups.get(signal, 0) for signal in Signal},
        **{f"seconds/{part}": s.seconds.get(part) for part in parts},
    }
