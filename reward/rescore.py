"""Stored trajectories under another reward or stop protocol, without playing anything.

Shows within seconds the effect of a changed setting: which episodes would have stopped earlier, and
how many groups would have no signal. It must not guess what was never played: if the other protocol
would have continued, or run another command, the trajectory is counted separately.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fieldkit.records import Action, ActionKind, RolloutGroup, Signal, StopReason, Trajectory
from fieldkit.training.advantages import EQUAL_WITHIN
from reward.reward import Reward

Parse = Callable[[str], Action]
"""A stop protocol: the text of one completion → the action in it."""


class Fate(StrEnum):
    """What becomes of a stored trajectory under another protocol."""

    SAME = "SAME"
    """The same turns, the same actions."""
    STOPS_EARLIER = "STOPS_EARLIER"
    """A turn that was not a stop, perhaps the last, would have been read as "done"."""
    GOES_ON = "GOES_ON"
    """It stopped where the other protocol would have continued, which was never played."""
    DIVERGES = "DIVERGES"
    """Another command would have run, which was never played."""


@dataclass(frozen=True)
class Rescored:
    """One trajectory, scored again."""

    task_id: str
    k: int
    fate: Fate
    turns: int
    """Turns under the other protocol; as stored if the rest was never played."""
    turns_saved: int
    seconds: float
    """Seconds of `turns`."""
    seconds_saved: float
    """Seconds of the turns that were saved."""
    commands_skipped: int
    """Commands that ran after the earlier stop, without those that the other protocol reads as a
    stop. With 0 the stored grade is exact; with more it belongs to a later state of the workspace,
    and the new reward is an estimate."""
    stored_reward: float
    reward: float


@dataclass(frozen=True)
class RescoredGroup:
    """One group, scored again. `signal` is None where a member's continuation was never played."""

    step: int
    task_id: str
    trajectories: tuple[Rescored, ...]
    stored_signal: Signal
    signal: Signal | None


@dataclass(frozen=True)
class Spread:
    """Mean, median and sample standard deviation of some numbers; all 0 without a number."""

    mean: float
    median: float
    deviation: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of `values`; one value alone deviates by 0."""
    if not values:
        return Spread(0.0, 0.0, 0.0)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), statistics.median(values), deviation)


@dataclass(frozen=True)
class ReplaySummary:
    """Counts for deciding whether a setting is worth a night."""

    n_trajectories: int
    fates: dict[Fate, int]
    turns_stored: int
    turns_saved: int
    seconds_stored: float
    seconds_saved: float
    estimated: int
    """Trajectories whose new reward is an estimate (`commands_skipped` above 0)."""
    zero_rewards_stored: int
    zero_rewards: int
    stored_rewards: Spread
    rewards: Spread
    n_groups: int
    without_signal_stored: int
    without_signal: int
    undecided_groups: int


def rescore(trajectory: Trajectory, reward: Reward, parse: Parse | None = None) -> Rescored:
    """One stored trajectory under `reward` and, if given, another protocol. Raises `ValueError` if
    the trajectory has more turns than the reward's settings allow.
    """
    fate, turns = _fate(trajectory, parse)
    stop = StopReason.TASK_COMPLETE if fate is Fate.STOPS_EARLIER else trajectory.stop_reason
    after_stop = trajectory.turns[turns:]
    # A policy whose stop was not recognised repeats it; an echo of it changes nothing.
    skipped = sum(bool(parse(t.text).command) for t in after_stop) if parse else 0
    return Rescored(
        task_id=trajectory.task_id,
        k=trajectory.k,
        fate=fate,
        turns=turns,
        turns_saved=len(after_stop),
        seconds=sum(t.seconds for t in trajectory.turns[:turns]),
        seconds_saved=sum(t.seconds for t in after_stop),
        commands_skipped=skipped,
        stored_reward=trajectory.reward,
        reward=reward.of_episode(trajectory.grade, trajectory.turns[:turns], stop),
    )


def _fate(trajectory: Trajectory, parse: Parse | None) -> tuple[Fate, int]:
    """The trajectory's fate under the other protocol, and its number of turns."""
    stored = len(trajectory.turns)
    if parse is None:
        return Fate.SAME, stored
    for number, turn in enumerate(trajectory.turns, start=1):
        action = parse(turn.text)
        if turn.action.kind is ActionKind.DONE and action.kind is not ActionKind.DONE:
            return Fate.GOES_ON, stored
        if action.command and action.command != turn.action.command:
            return Fate.DIVERGES, stored
        if action.kind is ActionKind.DONE and turn.action.kind is not ActionKind.DONE:
            return Fate.STOPS_EARLIER, number
        if action != turn.action:
            return Fate.DIVERGES, stored
    return Fate.SAME, stored


def _rescore_group(group: RolloutGroup, reward: Reward, parse: Parse | None) -> RescoredGroup:
    at_step = replace(reward, settings=reward.settings.at_step(group.step))
    again = tuple(rescore(t, at_step, parse) for t in group.trajectories)
    known = all(r.fate in (Fate.SAME, Fate.STOPS_EARLIER) for r in again)
    pairs = zip(group.trajectories, again, strict=True)
    signal = at_step.signal([replace(t, reward=r.reward) for t, r in pairs]) if known else None
    return RescoredGroup(group.step, group.task_id, again, group.signal, signal)


def summarise(rescored: Sequence[Rescored], groups: Sequence[RescoredGroup] = ()) -> ReplaySummary:
    """Counts over rescored trajectories, and over the groups they form (none for an evaluation)."""
    fates = Counter(r.fate for r in rescored)
    flat = (Signal.SATURATED, Signal.STUCK)
    return ReplaySummary(
        n_trajectories=len(rescored),
        fates={fate: fates[fate] for fate in Fate},
        turns_stored=sum(r.turns + r.turns_saved for r in rescored),
        turns_saved=sum(r.turns_saved for r in rescored),
        seconds_stored=sum(r.seconds + r.seconds_saved for r in rescored),
        seconds_saved=sum(r.seconds_saved for r in rescored),
        estimated=sum(r.commands_skipped > 0 for r in rescored),
        zero_rewards_stored=sum(abs(r.stored_reward) <= EQUAL_WITHIN for r in rescored),
        zero_rewards=sum(abs(r.reward) <= EQUAL_WITHIN for r in rescored),
        stored_rewards=spread([r.stored_reward for r in rescored]),
        rewards=spread([r.reward for r in rescored]),
        n_groups=len(groups),
        without_signal_stored=sum(g.stored_signal in flat for g in groups),
        without_signal=sum(g.signal in flat for g in groups),
        undecided_groups=sum(g.signal is None for g in groups),
    )


def replay_groups(
    groups: Iterable[RolloutGroup], reward: Reward, parse: Parse | None = None
) -> tuple[tuple[RescoredGroup, ...], ReplaySummary]:
    """Every group of a run's bundles scored again, by the reward's values at its step, and the
    counts."""
    again = tuple(_rescore_group(g, reward, parse) for g in groups)
    return again, summarise([r for g in again for r in g.trajectories], again)
