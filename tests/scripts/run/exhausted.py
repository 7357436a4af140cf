"""A made night whose pool has taught its last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fieldkit.codec import encode, encode_group
from fieldkit.records import RolloutGroup
from reward.group_signal import draw_of
from tests.scripts.made_night import Night, group, make_night, summary

POOL = 4
LONG = 36
"""Steps after which a pool of four has converged that taught in the first one only."""


def silence(night: Night, steps: Iterable[int]) -> Night:
    """The groups of these steps without signal: every rollout passed."""
    for n in steps:
        drawn = [f"p{(2 * n + i) % POOL:03d}" for i in range(2)]
        groups = [silent_group(n, task) for task in drawn]
        night.folder.bundle(n).write_text("".join(encode_group(g) + "\n" for g in groups))
        draws = tuple(map(draw_of, groups))
        silent = replace(summary(n, LONG), groups={"LEARNABLE": 2}, draws=draws)
        night.folder.summary(n).write_text(encode(silent))
    return night


def silent_group(n: int, task_id: str) -> RolloutGroup:
    """Two rollouts that passed. Their turns differ, so they are trained on under a turn penalty."""
    made = group(n, task_id)
    first, second = made.trajectories
    longer = replace(first, k=1, turns=(*first.turns, *second.turns))
    return replace(made, trajectories=(first, longer))


def exhausted_night(root: Path) -> Night:
    """A night of 99 steps whose pool taught in its first step only, run.toml included."""
    night = silence(make_night(root, n_steps=LONG), range(2, LONG + 1))
    config = replace(night.config, run=replace(night.config.run, steps=99))
    data = config.data
    night.folder.config.write_text(
        f"[run]\nsteps = 99\neval_every = 0\n"
        f'[data]\npool = "{data.pool}"\nheldout = "{data.heldout}"\n'
    )
    night.folder.adapter(0).mkdir()  # without any weights it would be a copy, which no loop runs
    return Night(night.folder, config)
