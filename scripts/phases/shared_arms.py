"""Copies arms that a neighbouring run has already played under the same conditions.

The base model's arm is the slowest part of a start, and it is the same for every run on the same
model, tasks and limits. An arm is copied only if everything that could change it is equal; the
journal names its source. Rewards are computed again from the grades, with this run's settings. If
the other run has no transcripts, or only packed ones (a committed night was played on another
machine), the arm is played here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.sharded import stored
from rollout.arm import SUMMARY, TRAJECTORIES, EvalSummary, summarise, write_arm
from scripts.evidence.conditions import same_conditions
from scripts.evidence.played import PlayedArm, read_played
from scripts.phases.context import Context
from scripts.phases.make_player import reward
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest


def take_over(ctx: Context, arm: str, adapter_sha: str) -> EvalSummary | None:
    """Copy the arm from another run into this one; None if no run has it."""
    key = ctx.arm_key(adapter_sha)
    if (ctx.folder.evals / key / SUMMARY).is_file():
        return None  # it is there already
    if (mine := read_manifest(ctx.folder)) is None:
        return None
    for other in sorted(ctx.folder.path.parent.glob(f"*/evals/{key}/{SUMMARY}")):
        run = RunFolder(other.parents[2])
        found = _played_alike(mine, run, other.parent)
        if found is None:
            continue
        trajectories = [*map(reward(ctx).paid, found.trajectories)]
        summary = summarise(
            trajectories,
            arm=arm,
            tasks=ctx.heldout(),
            settings=ctx.eval_limits,
            samples=found.summary.samples,
            seconds=found.summary.seconds,
            n_kept=found.summary.n_kept,
        )
        write_arm(ctx.folder.evals / key, trajectories, summary)
        ctx.journal.append("arm_taken_over", arm=arm, key=key, run=run.name)
        return summary
    return None


def _played_alike(mine: Mapping[str, Any], run: RunFolder, arm: Path) -> PlayedArm | None:
    """The other run's arm; None if its conditions differ or it cannot be read (another version,
    missing or packed transcripts)."""
    if stored(arm / TRAJECTORIES) is None:
        return None
    try:
        theirs = read_manifest(run)
        if theirs is None or not same_conditions(mine, theirs):
            return None
        return read_played(arm)
    except (BadInput, OSError):
        return None
