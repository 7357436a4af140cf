"""Before a night: four tasks are played K times each, to see whether the rewards differ at all.

GRPO learns from differences within a group. An adapter that always does the same, a reward that
does not distinguish attempts, or a pool that is solved or too hard shows here within minutes,
before the night. A preflight writes no files.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fieldkit.records import (
    RolloutGroup,
    Signal,
    StopReason,
    Task,
    ended_by_themselves,
)
from reward.totals import totals
from rollout.flight import OnProgress, ignore_progress
from rollout.group import play_groups
from rollout.player import Player
from rollout.reply_faults import reply_faults

PREFLIGHT_TASKS = 4
"""The most tasks of a preflight, as in the third reference document."""
PREFLIGHT_STEP = 0
"""The step whose seeds a preflight uses; training steps count from 1."""


class Verdict(StrEnum):
    """What a preflight says."""

    HAS_SIGNAL = "HAS_SIGNAL"
    """The rewards of at least one group differ."""
    NO_SIGNAL = "NO_SIGNAL"
    """The rewards of every group are equal: a step on them would change nothing."""


@dataclass(frozen=True)
class PreflightRow:
    """One task's group: K of each."""

    task_id: str
    rewards: tuple[float, ...]
    advantages: tuple[float, ...]
    """For each episode, the mean over its turns of the advantages that they would be trained
    with."""
    stops: tuple[StopReason, ...]
    n_passed: int
    signal: Signal
    grades_differ: bool
    """Whether more assertions hold after one attempt than after another; rewards may also differ
    because of turns alone."""

    @property
    def stdev(self) -> float:
        """Sample standard deviation of the rewards."""
        return statistics.stdev(self.rewards)


@dataclass(frozen=True)
class Preflight:
    """The rows and the verdict."""

    rows: tuple[PreflightRow, ...]
    verdict: Verdict
    stops: dict[StopReason, int]
    """Episodes by stop reason, at the training temperature."""
    mean_turns: float
    seconds: float
    """Wall clock."""
    faults: tuple[str, ...]
    """What is wrong with many replies, in sentences (`reply_faults`)."""

    @property
    def n_episodes(self) -> int:
        return sum(self.stops.values())

    @property
    def n_stopped(self) -> int:
        """Episodes that no limit ended, from which stopping is learned."""
        return ended_by_themselves(self.stops)


async def preflight(
    tasks: Sequence[Task],
    *,
    player: Player,
    run_seed: int,
    group_size: int,
    on_progress: OnProgress = ignore_progress,
) -> Preflight:
    """Play the first few of the tasks, `group_size` times each, as a step would."""
    began = player.clock()
    groups = await play_groups(
        PREFLIGHT_STEP,
        tasks[:PREFLIGHT_TASKS],
        player=player,
        run_seed=run_seed,
        group_size=group_size,
        partial=None,
        on_progress=on_progress,
    )
    return judge(groups, player.clock() - began)


def judge(groups: Sequence[RolloutGroup], seconds: float) -> Preflight:
    """Rows and verdict of groups that were played, such as a bundle's."""
    episodes = [t for g in groups for t in g.trajectories]
    sums = totals(episodes)
    learnable = any(g.signal is Signal.LEARNABLE for g in groups)
    return Preflight(
        rows=tuple(_row(g) for g in groups),
        verdict=Verdict.HAS_SIGNAL if learnable else Verdict.NO_SIGNAL,
        stops=dict(sums.stops),
        mean_turns=sums.mean_turns,
        seconds=seconds,
        faults=reply_faults(episodes),
    )


def _row(group: RolloutGroup) -> PreflightRow:
    return PreflightRow(
        task_id=group.task_id,
        rewards=tuple(t.reward for t in group.trajectories),
        advantages=tuple(statistics.fmean(turns or (0.0,)) for turns in group.by_turn),
        stops=tuple(t.stop_reason for t in group.trajectories),
        n_passed=sum(t.grade.passed for t in group.trajectories),
        signal=group.signal,
        grades_differ=len({t.grade.n_passed for t in group.trajectories}) > 1,
    )


HEADER = (
    "task",
    "rewards",
    "stdev",
    "advantage a turn",
    "passed",
    "stopped itself",
    "signal",
)


def render_rows(report: Preflight) -> list[tuple[str, ...]]:
    """The table as text cells, `HEADER` first."""
    rows = [
        (
            row.task_id,
            " ".join(f"{r:z.3f}" for r in row.rewards),
            f"{row.stdev:.3f}",
            " ".join(f"{a:+z.2f}" for a in row.advantages),
            f"{row.n_passed}/{len(row.rewards)}",
            f"{sum(stop.by_itself for stop in row.stops)}/{len(row.stops)}",
            row.signal.value,
        )
        for row in report.rows
    ]
    return [HEADER, *rows]


def explain(report: Preflight) -> str:
    """The verdict in a sentence or two, with advice if there is no signal."""
    learnable = [row for row in report.rows if row.signal is Signal.LEARNABLE]
    in_work = sum(row.grades_differ for row in learnable)
    counts = (
        f"{len(learnable)} of {len(report.rows)} groups have rewards that differ, {in_work} of them"
        " in the work that was done;"
        f" {report.n_stopped} of {report.n_episodes} episodes stopped by themselves"
    )
    if report.verdict is Verdict.NO_SIGNAL:
        advice = (
            ". A night would learn nothing: raise rollout.temperature or rollout.group_size, use"
            " the shaped reward, or start from another adapter or pool."
        )
    elif not report.n_stopped:
        advice = (
            ". Stopping cannot be reinforced before it happens: expect a slow start, or raise"
            " rollout.temperature."
        )
    else:
        advice = "."
    return " ".join((f"{report.verdict}: {counts}{advice}", *report.faults))
