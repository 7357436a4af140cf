"""Arms that another run beside this one has played already, under the same conditions.

The base model's arm is the slowest part of an evening, and it is the same for every run on the same
model, tasks and limits. An arm is taken over only where everything that could change it agrees; the
journal says where it came from. Rewards are made again from the grades, with this run's settings.
What another run has lost (a committed night comes without its transcripts) is played here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from rollout.arm import SUMMARY, EvalSummary, eval_key, summarise, write_arm
from scripts.evidence.conditions import same_conditions
from scripts.evidence.played import PlayedArm, read_played
from scripts.phases.context import Context
from scripts.phases.make_player import reward
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest


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
        found = _played_alike(mine, run, other.parent)
        if found is None:
            continue
        pay = reward(ctx).of_episode
        trajectories = [replace(t, reward=pay(t.grade, len(t.turns))) for t in found.trajectories]
        summary = summarise(
            trajectories,
            arm=arm,
            tasks=ctx.heldout(),
            settings=settings,
            samples=found.summary.samples,
            seconds=found.summary.seconds,
            n_kept=found.summary.n_kept,
        )
        write_arm(ctx.folder.evals / key, trajectories, summary)
        ctx.journal.append("arm_taken_over", arm=arm, key=key, run=run.name)
        return summary
    return None


def _played_alike(mine: Mapping[str, Any], run: RunFolder, arm: Path) -> PlayedArm | None:
    """The other run's arm; None where it was played otherwise, or cannot be read: a run of another
    version, or one whose transcripts are not there, is only passed over."""
    try:
        theirs = read_manifest(run)
        if theirs is None or not same_conditions(mine, theirs):
            return None
        return read_played(arm)
    except (BadInput, OSError):
        return None
