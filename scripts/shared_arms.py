"""Arms that another run beside this one has played already, under the same conditions.

The base model's arm is the slowest part of an evening, and it is the same for every run on the same
model, tasks and limits. An arm is taken over only where everything that could change it agrees; the
journal says where it came from. Rewards are made again from the grades, with this run's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.records import read_trajectories
from rollout.evaluate import (
    SUMMARY,
    TRAJECTORIES,
    EvalSummary,
    eval_key,
    read_eval,
    summarise,
    write_arm,
)
from scripts.conditions import TABLES, program_version
from scripts.context import Context
from scripts.manifest import read_manifest
from scripts.play import reward_function
from scripts.run_folder import RunFolder


def take_over(ctx: Context, arm: str, adapter_sha: str) -> EvalSummary | None:
    """The arm as another run played it, copied into this one; None where there is none."""
    settings = ctx.config.rollout.at(ctx.config.eval.temperature)
    key = eval_key(adapter_sha, ctx.heldout(), settings, ctx.config.eval.samples)
    if (ctx.folder.evals / key / SUMMARY).is_file():
        return None  # it is there already
    if (mine := read_manifest(ctx.folder)) is None:
        return None
    for other in sorted(ctx.folder.path.parent.glob(f"*/evals/{key}/{SUMMARY}")):
        run = RunFolder(other.parents[2])
        if not _same_conditions(mine, run):
            continue
        found = read_eval(other.parent)
        score = reward_function(ctx)
        trajectories = [
            replace(t, reward=score(t.grade, len(t.turns)))
            for t in read_trajectories(other.parent / TRAJECTORIES)
        ]
        summary = summarise(
            trajectories,
            arm=arm,
            tasks=ctx.heldout(),
            settings=settings,
            samples=found.samples,
            seconds=found.seconds,
        )
        write_arm(ctx.folder.evals / key, trajectories, summary)
        ctx.journal.append("arm_taken_over", arm=arm, key=key, run=run.name)
        return summary
    return None


def _same_conditions(mine: Mapping[str, Any], other: RunFolder) -> bool:
    try:
        theirs = read_manifest(other)
    except BadInput:  # of another version; it is only passed over
        return False
    if theirs is None or theirs["model"]["files"] != mine["model"]["files"]:
        return False
    if program_version(theirs) != program_version(mine):
        return False
    return all(theirs["config"].get(t) == mine["config"].get(t) for t in TABLES)
