"""`make bench`: this loop against what a person would run instead, and against the machine.

`python -m tests.bench` measures every part in turn and writes docs/performance.json and
docs/PERFORMANCE.md. Each measurement is kept at once: a bench that was ended goes on.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json, write_text
from scripts.base.checkout import ROOT
from tests.bench import against_trl, page, restarts, rollouts, steps, trainers
from tests.bench.measurements import Measurements, tell
from tests.bench.work import Work, about

KEPT = ROOT / "runs" / "bench"
"""Measurements and the rollout that trainers are measured on; git leaves it out."""
KEPT_SHORT = ROOT / "runs" / "bench-short"
"""The same of the short form, and what it writes."""
BUNDLE, FILE = "trajectory_bundle.jsonl", "measurements.jsonl"

PARTS = ("rollout", "trainer", "engine", "step", "trl")
SHORT = ("rollout.tasks_per_step=2", "rollout.group_size=2", "rollout.max_turns=2")


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times each is measured.")] = 3,
    short: Annotated[bool, typer.Option(help="Hardly any work: whether the bench works.")] = False,
    kept: Annotated[Path | None, typer.Option(help="Where measurements are kept.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the page and the table go.")] = None,
) -> None:
    """Measure what is still to be measured, and write what was found: into runs/bench and docs, or
    with --short into runs/bench-short."""
    kept = kept or (KEPT_SHORT if short else KEPT)
    out = out or (KEPT_SHORT if short else ROOT / "docs")
    out.mkdir(parents=True, exist_ok=True)  # before it is measured for an hour
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end as on Ctrl-C
    chosen = tuple(part or PARTS)
    if unknown := set(chosen) - set(PARTS):
        raise BadInput(f"--part {min(unknown)}: unknown; known: {', '.join(PARTS)}")
    work = Work.of_preset(SHORT if short else ())
    taken = Measurements(kept / FILE, about(work))
    bundle = kept / BUNDLE
    if not taken.found:
        bundle.unlink(missing_ok=True)
    if "rollout" in chosen:
        rollouts.measure(work, taken, rounds, bundle)
    if "trainer" in chosen:
        if not bundle.is_file():
            rollouts.make_bundle(work, bundle)
        trainers.measure(work, taken, rounds, bundle)
    if "engine" in chosen:
        restarts.measure(work, taken, rounds)
    if "step" in chosen:
        steps.measure(work, taken, rounds)
    if "trl" in chosen:
        against_trl.measure(work, taken, rounds)
    write_json(out / "performance.json", page.record(work, taken))
    write_text(out / "PERFORMANCE.md", page.page(work, taken))
    tell(str(out / "PERFORMANCE.md"))


if __name__ == "__main__":
    typer.run(main)
