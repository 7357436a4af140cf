"""Reads evidence.json back: the evidence of a night whose held-out episodes are not in this copy.

A night may be committed with its figures and without its episodes. Its tables and its verdict can
still be shown, because evidence.json holds every number of them. The file is taken only if it fits
the run's finished evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fieldkit.codec import SCHEMA, from_plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from fieldkit.records import StepSummary
from rollout.arm import EvalSummary, stored_transcripts
from scripts.evidence.collect import Evidence
from scripts.evidence.played import arm_names, finished
from scripts.run.folder import RunFolder

TRAINING, HELD_OUT = "the episodes of training", "held-out episodes"


def read_stored(
    folder: RunFolder, steps: Sequence[StepSummary], summaries: Sequence[EvalSummary]
) -> Evidence | None:
    """The evidence in evidence.json; None if there is no such file.

    Raises `BadInput` if it is not evidence, or not that of exactly these finished evaluations.
    """
    path = folder.evidence
    if not path.is_file():
        return None
    value = read_json(path)
    if not isinstance(value, dict) or value.pop("schema", None) != SCHEMA:
        raise BadInput(f"{path}:1: not evidence of schema {SCHEMA}")
    found = {k: v for k, v in value.items() if k not in ("verdict", "milestones")}
    evidence = from_plain(Evidence, found, f"{path}:1")
    names = arm_names(steps)
    played = {names.get(s.adapter_sha, s.arm): s for s in summaries}
    there = {a.name: a.n_tasks for a in evidence.arms}
    if there != {name: s.n_tasks for name, s in played.items()}:
        raise BadInput(
            f"{path}: not the evidence of the finished evaluations ({', '.join(played) or 'none'})"
        )
    for arm in evidence.arms:
        s = played[arm.name]
        if s.samples == 1 and (arm.passed, arm.stopped) != (s.n_passed, s.n_stopped):
            raise BadInput(f"{path}: {arm.name} passed {arm.passed}, in eval.json {s.n_passed}")
    return evidence


def absent_episodes(folder: RunFolder, n_steps: int) -> tuple[str, ...]:
    """The episodes that were played and are not in this copy of the run, in words."""
    missing = {
        TRAINING: not has_bundles(folder, n_steps),
        HELD_OUT: not all(map(has_episodes, finished(folder.evals))),
    }
    return tuple(what for what, is_missing in missing.items() if is_missing)


def has_bundles(folder: RunFolder, n_steps: int) -> bool:
    """Whether every finished step after step-000 has its bundle."""
    return all(folder.has_bundle(n) for n in range(1, n_steps))


def has_episodes(arm: Path) -> bool:
    """Whether a finished evaluation has its trajectories, packed or not."""
    return stored_transcripts(arm) is not None
