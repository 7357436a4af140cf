"""The credit rules: how every turn of an episode gets its advantage.

One advantage for a whole episode credits the turn that says "done" with the work before it.
`turn_advantages` credits a turn with the reward after it, compared with the reward after the same
turn in the group: the policy gradient with rewards-to-go and a baseline by time (Sutton et al.
2000, theorem 1; Williams 1992), group-relative as in `fieldkit.training.advantages`.
`state_advantages` compares turns in the same state instead. Nothing here plays or trains.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

from fieldkit.registry import Registry
from fieldkit.training.advantages import (
    ADVANTAGE_EPS,
    Scale,
    all_equal,
    check_rewards,
    group_advantages,
    leave_one_out,
)

Rows = Sequence[Sequence[float]]
"""A number for every turn of each of a group's K episodes."""

_STATE_DIGITS = 9  # progress is a sum of shares such as 1/3; smaller differences are rounding


def states_of(progress: Sequence[float | None]) -> tuple[float, ...]:
    """The state before each turn: the sum of the progress (`Turn.reward`) made so far."""
    sums = itertools.accumulate((p or 0.0 for p in progress[:-1]), initial=0.0)
    return tuple(round(s, _STATE_DIGITS) for s in sums) if progress else ()


def group_states(progress: Sequence[Sequence[float | None]]) -> Rows:
    """Of each of a group's episodes the states before its turns. Where the environment reports no
    progress with any turn, the number of the turn stands for the state: as one state, a long
    episode would count in its mean as often as it has turns."""
    if all(p is None for turns in progress for p in turns):
        return [tuple(map(float, range(len(turns)))) for turns in progress]
    return [states_of(turns) for turns in progress]


def turn_advantages(
    rewards: Sequence[float], earned: Rows, states: Rows = (), scale: Scale = "std"
) -> tuple[tuple[float, ...], ...]:
    """Each turn gets the reward from there on, compared with the same turn of the group's episodes.

    The reward-to-go of turn t is the episode's reward minus what was earned before t. After an
    episode's last turn it is the part of the reward that no turn earned. The advantage is the
    difference to the mean over all K at the same t, so that of the first turn is the episode's r −
    μ. "std" divides by the root mean square over all turns of the group (+ 1e-4); "mean" does not
    divide. Equal rewards give exact zeros, as in `group_advantages`. Raises as `check_rewards`.
    """
    check_rewards(rewards)
    if all_equal(rewards):
        return tuple((0.0,) * len(turns) for turns in earned)
    longest = max(len(turns) for turns in earned)
    to_go = [_to_go(r, turns, longest) for r, turns in zip(rewards, earned, strict=True)]
    baselines = [statistics.fmean(row[t] for row in to_go) for t in range(longest)]
    centred = [
        [row[t] - baselines[t] for t in range(len(turns))]
        for row, turns in zip(to_go, earned, strict=True)
    ]
    return _scaled(centred, scale)


def state_advantages(
    rewards: Sequence[float], earned: Rows, states: Rows, scale: Scale = "std"
) -> tuple[tuple[float, ...], ...]:
    """As "turn", but compared with all turns of the group in the same state: GiGPO's step-level
    advantage.

    K rewards, and what each turn earned in which state → an advantage for every turn. The baseline
    of a turn is the mean reward-to-go over all turns of the group in its state, however often an
    episode was there (Feng et al. 2025, arXiv:2505.10978; here without discount and without the
    episode's term, and "std" divides by the root mean square over all turns, where the paper takes
    the deviation in each state). A turn that is alone in its state has 0. Every episode begins in
    one state, so unequal rewards always give some turn an advantage.
    """
    check_rewards(rewards)
    if all_equal(rewards):
        return tuple((0.0,) * len(turns) for turns in earned)
    to_go = [_to_go(r, turns, len(turns)) for r, turns in zip(rewards, earned, strict=True)]
    found: dict[float, list[float]] = {}
    for row, visited in zip(to_go, states, strict=True):
        for value, state in zip(row, visited, strict=True):
            found.setdefault(state, []).append(value)
    baselines = {state: statistics.fmean(values) for state, values in found.items()}
    centred = [
        [value - baselines[state] for value, state in zip(row, visited, strict=True)]
        for row, visited in zip(to_go, states, strict=True)
    ]
    return _scaled(centred, scale)


def _scaled(centred: Rows, scale: Scale) -> tuple[tuple[float, ...], ...]:
    """ "std" divides by the root mean square over all turns; "mean" does not divide."""
    divisor = 1.0
    if scale == "std":
        divisor = statistics.fmean(a * a for row in centred for a in row) ** 0.5 + ADVANTAGE_EPS
    return tuple(tuple(a / divisor for a in row) for row in centred)


def _to_go(reward: float, earned: Sequence[float], longest: int) -> list[float]:
    """Rewards-to-go of turns 0..longest − 1; after the last turn the last value is repeated."""
    out = [reward]
    for gain in earned:
        out.append(out[-1] - gain)
    return (out + [out[-1]] * longest)[:longest]


def episode_advantages(
    rewards: Sequence[float], earned: Rows, states: Rows = (), scale: Scale = "std"
) -> tuple[tuple[float, ...], ...]:
    """GRPO as published: every turn has the advantage of its episode."""
    return _at_each_turn(group_advantages(rewards, scale), earned)


def rloo_advantages(
    rewards: Sequence[float], earned: Rows, states: Rows = (), scale: Scale = "std"
) -> tuple[tuple[float, ...], ...]:
    """RLOO: every turn has its episode's reward minus the mean of the group's other episodes."""
    return _at_each_turn(leave_one_out(rewards, scale), earned)


def _at_each_turn(advantages: Sequence[float], earned: Rows) -> tuple[tuple[float, ...], ...]:
    return tuple((a,) * len(turns) for a, turns in zip(advantages, earned, strict=True))


CreditRule = Callable[[Sequence[float], Rows, Rows, Scale], tuple[tuple[float, ...], ...]]
"""K rewards, what each turn earned, the state before each turn (`group_states`) and the scale → an
advantage for every turn. Equal rewards have to give zeros, because a group without signal must not
train; unequal ones have to give some turn an advantage, because the trainer refuses a group that
should teach and whose turns all have 0.
"""

CREDITS: Registry[CreditRule] = Registry("credit rule")
"""By the names that `advantages.credit` may have."""
CREDITS.register("episode", episode_advantages)
CREDITS.register("turn", turn_advantages)
CREDITS.register("state", state_advantages)
CREDITS.register("rloo", rloo_advantages)
