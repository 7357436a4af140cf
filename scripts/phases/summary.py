"""A step's bundle and train.json as its StepSummary.

Means are over the B*K trajectories. Nothing is measured again: what is not in the two files is
None. The summary is what "done" means, so it is composed from files that are whole already.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldkit.records import Outcome, RolloutGroup, StepSummary, StopReason
from scripts.run.timings import StepTimings


@dataclass(frozen=True)
class BundleFigures:
    """What a bundle's trajectories come to. groups: groups by signal."""

    n_trajectories: int
    mean_reward: float
    pass_rate: float
    assertion_rate: float
    stop_rate: float
    mean_turns: float
    mean_tokens: float
    groups: dict[str, int]


def bundle_figures(groups: Sequence[RolloutGroup]) -> BundleFigures:
    """Add up a bundle of at least one group."""
    episodes = [t for g in groups for t in g.trajectories]
    n_assertions = sum(t.grade.n_total for t in episodes)
    return BundleFigures(
        n_trajectories=len(episodes),
        mean_reward=statistics.fmean(t.reward for t in episodes),
        pass_rate=statistics.fmean(t.grade.passed for t in episodes),
        assertion_rate=sum(t.grade.n_passed for t in episodes) / max(1, n_assertions),
        stop_rate=statistics.fmean(t.stop_reason is StopReason.TASK_COMPLETE for t in episodes),
        mean_turns=statistics.fmean(len(t.turns) for t in episodes),
        mean_tokens=statistics.fmean(
            sum(len(turn.completion_ids) for turn in t.turns) for t in episodes
        ),
        groups=dict(Counter(g.signal.value for g in groups)),
    )


def step_summary(
    step: int, groups: Sequence[RolloutGroup], trained: Mapping[str, Any], timings: StepTimings
) -> StepSummary:
    """The summary of a step whose bundle is `groups` and whose train.json is `trained`."""
    figures = bundle_figures(groups)
    return StepSummary(
        step=step,
        outcome=Outcome(trained["outcome"]),
        parent_sha=trained["parent_sha"],
        adapter_sha=trained["adapter_sha"],
        optimizer_sha=trained["optimizer_sha"],
        bundle_sha=trained["bundle_sha"],
        n_trajectories=figures.n_trajectories,
        mean_reward=figures.mean_reward,
        pass_rate=figures.pass_rate,
        assertion_rate=figures.assertion_rate,
        stop_rate=figures.stop_rate,
        mean_turns=figures.mean_turns,
        mean_tokens=figures.mean_tokens,
        groups=figures.groups,
        train={
            key: float(value)
            for key, value in trained["train"].items()
            if isinstance(value, (int, float))
        },
        seconds={k: round(v, 3) for k, v in {**timings.seconds, "wall": timings.wall}.items()},
    )
