"""One arm by itself: what it came to, with intervals, as a table and as plain values.

Without a second arm there is no difference to test: `grpo compare` does that. This module selects
and formats; fieldkit computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fieldkit.eval.matched import ArmRow, MatchedArms
from fieldkit.eval.stats import Estimate
from fieldkit.files.journal import Journal
from fieldkit.records import Task
from rollout.arm import EvalSummary
from rollout.reply_faults import reply_faults
from scripts.evidence.collect import about_tasks, arm_of, opened_before, played_on
from scripts.evidence.played import read_played
from scripts.evidence.tables import unprotected_note
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest, sandbox_kind
from scripts.words import quantities
from scripts.words.table import Table


@dataclass(frozen=True)
class ArmFigures:
    """A finished arm: its name, its summary, and its figures with 95 % intervals. about: what has
    to be known of the tasks, and what is wrong with many replies."""

    name: str
    summary: EvalSummary
    row: ArmRow
    about: tuple[str, ...]


def arm_figures(name: str, folder: Path, tasks: Sequence[Task]) -> ArmFigures:
    """Read the arm in `folder`, an evaluation's. Raises as `read_played`."""
    played = read_played(folder)
    (row,) = MatchedArms([arm_of(name, played, tasks)], name).rows()
    run = RunFolder(folder.parents[1])
    manifest, journal = read_manifest(run), Journal(run.journal).read()
    about = about_tasks(played_on(manifest, journal), opened_before(manifest, journal))
    if sandbox_kind(manifest or {}) == "none":
        about = (unprotected_note([name]), *about)
    return ArmFigures(name, played.summary, row, (*about, *reply_faults(played.trajectories)))


def single_arm_table(found: ArmFigures) -> Table:
    """A row for each figure."""
    row, summary = found.row, found.summary
    rates = (
        ("tasks passed", row.passed, row.n_tasks, row.pass_rate),
        (
            "assertions that hold",
            row.assertions_passed,
            row.assertions_total,
            row.assertion_rate,
        ),
        ("ended by itself", row.stopped, row.n_tasks, row.stop_rate),
    )
    means = [("mean turns", row.mean_turns), ("tokens a task", row.mean_tokens)]
    if not row.mean_tokens.value:  # an endpoint gives no ids
        means.pop()
    stops = ", ".join(f"{reason} {n}" for reason, n in summary.stops.items())
    of_all: list[tuple[str, str, str]] = []
    first: tuple[str, ...] = ()
    if summary.samples > 1:
        all_passed = quantities.share(summary.n_passed, summary.n_trajectories)
        of_all = [("passed, of all attempts", all_passed, "")]
        first = (
            f"Of {summary.samples} attempts at a task the first ones count, as in every comparison,"
            " except where a row says all.",
        )
    return Table(
        f"{found.name} ({quantities.counted(row.n_tasks, 'task')}, T = {summary.temperature:g})",
        ("", "found", "95 % interval"),
        (
            *[(n, quantities.share(part, of), _span(e, 100, " %")) for n, part, of, e in rates],
            *[(n, quantities.plain(e.value), _span(e, 1, "")) for n, e in means],
            *of_all,
            ("wall time, s", quantities.plain(row.mean_seconds), ""),
            ("stops" if summary.samples == 1 else "stops of all attempts", stops, ""),
        ),
        (
            *found.about,
            *first,
            "Intervals: Wilson's for shares of tasks, bootstrap over tasks for the others.",
        ),
    )


def plain_figures(found: ArmFigures) -> dict[str, Any]:
    """The same, JSON-ready."""
    figures = {"arm": found.name, "summary": asdict(found.summary), "figures": asdict(found.row)}
    return figures | ({"notes": list(found.about)} if found.about else {})


def _span(value: Estimate, scale: float, unit: str) -> str:
    if value.interval is None:
        return ""
    if quantities.is_alike(value):
        return quantities.ALIKE
    low, high = (f"{scale * end:.1f}" for end in (value.interval.low, value.interval.high))
    return f"{low} to {high}{unit}"
