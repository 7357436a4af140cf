"""Makes a step's StepSummary from its bundle and train.json.

Means are over all trajectories that the step played, of groups that were replaced too. Nothing is
measured again: a figure that neither file holds is None. The summary marks the step as done, so its
input files are complete before it is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fieldkit.records import EnvSummary, Outcome, RolloutGroup, StepSummary, Trajectory
from reward.group_signal import draw_of
from reward.idleness import at_stop
from reward.totals import totals
from rollout.tasks import decode_tasks
from scripts.run.config import RunConfig
from scripts.run.timings import StepTimings


def step_summary(
    step: int,
    groups: Sequence[RolloutGroup],
    trained: Mapping[str, Any],
    timings: StepTimings,
    *,
    by_env: bool = False,
    policy_age: int = 0,
) -> StepSummary:
    """The summary of a step whose bundle is `groups` and whose train.json is `trained`.

    by_env: also by environment, as in a run with `several_envs`. policy_age: how many steps older
    than the trained adapter the one is that played them.
    """
    age = {"policy_age": float(policy_age)} if policy_age else {}
    envs = dict.fromkeys(g.env for g in groups) if by_env else {}
    trajectories = [t for g in groups for t in g.trajectories]
    return StepSummary(
        step=step,
        outcome=Outcome(trained["outcome"]),
        parent_sha=trained["parent_sha"],
        adapter_sha=trained["adapter_sha"],
        optimizer_sha=trained["optimizer_sha"],
        bundle_sha=trained["bundle_sha"],
        **asdict(_played(trajectories)),
        groups=dict(Counter(g.signal.value for g in groups)),
        train={
            key: float(value)
            for key, value in trained["train"].items()
            if isinstance(value, (int, float))
        }
        | age,
        seconds={k: round(v, 3) for k, v in {**timings.seconds, "wall": timings.wall}.items()},
        draws=tuple(map(draw_of, groups)),
        environments={
            env: _played([t for g in groups if g.env == env for t in g.trajectories])
            for env in envs
        },
        at_stop=at_stop(trajectories),
    )


def several_envs(config: RunConfig, pool: Path) -> bool:
    """Whether a run plays several environments, although one of its steps may have one. pool: its
    task file."""
    if config.data.mix:
        return len(config.data.mix) > 1
    # Without environments of its own a run has one, so most runs need not read their pool here.
    return bool(config.envs) and len({task.env for task in decode_tasks(pool)}) > 1


def _played(trajectories: Sequence[Trajectory]) -> EnvSummary:
    sums = totals(trajectories)
    return EnvSummary(
        n_trajectories=sums.n,
        mean_reward=sums.mean_reward,
        pass_rate=sums.pass_rate,
        assertion_rate=sums.assertion_rate,
        stop_rate=sums.stop_rate,
        mean_turns=sums.mean_turns,
        mean_tokens=sums.mean_tokens,
    )
