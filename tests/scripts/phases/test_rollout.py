"""What the rollout phase says of its episodes."""

from __future__ import annotations

from dataclasses import replace

from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.records import RolloutGroup, Signal, StopReason
from reward.group_signal import LATE
from scripts.phases.rollout import late, no_room, unrewarded
from tests.scripts.evals import trajectory


def group(*values: float | None) -> RolloutGroup:
    parts = [(RewardPart("won", v), RewardPart("hints", 1.0, 0.0)) for v in values]
    one = trajectory("a", "sha", 1, 0, True)
    played = tuple(replace(one, k=k, grade=Grade((), p)) for k, p in enumerate(parts))
    return RolloutGroup(1, "game", "a", played, (0.0,) * len(played), Signal.STUCK)


def test_episodes_to_which_no_part_applies_are_warned_of() -> None:
    said = unrewarded((group(1.0, None, None),))
    assert said is not None
    assert said.startswith("2 of 3 episodes get no reward")
    assert "env game, task a, k = 1" in said


def test_attempts_that_could_not_begin_are_warned_of() -> None:
    whole = group(1.0, 0.0, 0.5)
    first, second, third = whole.trajectories
    cut = replace(second, turns=(), stop_reason=StopReason.CONTEXT_FULL)
    said = no_room((replace(whole, trajectories=(first, cut, third)),))
    assert said is not None
    assert said.startswith("1 of 3 episodes took no turn")
    assert "task a, k = 1" in said
    assert no_room((whole,)) is None


def test_attempts_that_a_late_call_ended_are_warned_of_once() -> None:
    whole = group(1.0, None, 0.5)
    first, second, third = whole.trajectories
    [turn] = trajectory("a", "sha", 1, 1, False).turns
    said_so = replace(turn, observation="the tool wait: no answer in 60 s")
    ended = replace(
        second,
        turns=(said_so,),
        stop_reason=StopReason.TIME_LIMIT,
        metrics={**second.metrics, LATE: 1.0},
    )
    groups = (replace(whole, trajectories=(first, ended, third)),)
    said = late(groups)
    assert said is not None
    assert said.startswith("1 of 3 episodes ended because a call had no answer in time")
    assert said.endswith("task a, k = 1: the tool wait: no answer in 60 s")
    assert unrewarded(groups) is None
    assert late((whole,)) is None


def test_a_part_of_zero_is_a_reward() -> None:
    assert unrewarded((group(0.0, 1.0),)) is None
