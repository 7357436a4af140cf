"""`grpo pack`: makes a run committable, by compressing what its readers need.

The held-out episodes of a night are a few megabytes of text, and a tenth of that compressed. With
them in the repository, every command that reads a run works on a fresh clone. The episodes of
training and the weights are too large for that and stay on the machine. Nothing is removed.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_packed
from fieldkit.files.sharded import read_records, stored
from rollout.arm import PACKED_TRAJECTORIES, TRAJECTORIES
from scripts.base.display import Progress, silent
from scripts.evidence.played import finished, read_played
from scripts.run.folder import RunFolder

COMMITTED = (
    "run.toml",
    "manifest.json",
    "journal.jsonl",
    "grown-*.jsonl",
    "step-*/step.json",
    "step-*/timings.json",
    "evals/**/eval.json",
    f"evals/**/{PACKED_TRAJECTORIES}",
    "evidence.json",
    "evidence.md",
    "curve.png",
    "report.html",
    "steps.csv",
    "steps.json",
)
"""What of a run belongs into a repository, as patterns below its folder."""


@dataclass(frozen=True)
class Packed:
    """patterns: those of `COMMITTED` that match a file. n_bytes: size of all packed episodes."""

    patterns: tuple[str, ...]
    n_arms: int
    n_bytes: int


def pack(folder: RunFolder, progress: Progress = silent) -> Packed:
    """Compress the episodes of every finished evaluation, and list what to commit.

    An arm that has only packed episodes is left as it is. Raises `BadInput` if no evaluation is
    finished, or if one has no readable episodes; then nothing was written.
    """
    arms = finished(folder.evals)
    if not arms:
        raise BadInput(
            f"{folder.evals}: no evaluation is finished; `grpo run {folder.typed}` plays them"
        )
    arms += finished(folder.training_evals)
    for arm in arms:
        read_played(arm)
    for done, arm in enumerate(arms, start=1):
        played = arm / TRAJECTORIES
        if stored(played) is not None:
            lines = (line.encode() + b"\n" for _, line in read_records(played))
            write_packed(arm / PACKED_TRAJECTORIES, lines)
        progress("arms packed", done, len(arms))
    n_bytes = sum((arm / PACKED_TRAJECTORIES).stat().st_size for arm in arms)
    patterns = tuple(p for p in COMMITTED if any(folder.path.glob(p)))
    return Packed(patterns, len(arms), n_bytes)
