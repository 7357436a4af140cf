"""A record is whole or refused, and tells what follows from its fields."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.records import (
    Draw,
    EnvSummary,
    Signal,
    StopReason,
    ended_by_themselves,
    in_common,
    segments,
)
from tests.fieldkit.test_codec import group, summary, trajectory, turn


def test_a_turn_has_a_logprob_for_every_sampled_id() -> None:
    with pytest.raises(ValueError, match="2 completion ids but 1 logprobs"):
        turn((1,), (2, 3), logprobs=(-0.1,))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advantages": (0.0,)}, "2 trajectories but 1 advantages"),
        ({"turn_advantages": ((0.0,), (0.0, 0.0, 0.0))}, "turn_advantages"),
        ({"trajectories": (trajectory(1), trajectory(0))}, "k = 0..K-1"),
        ({"task_id": "t2"}, "another task"),
        ({"trajectories": (trajectory(0), trajectory(1, adapter_sha="cd"))}, "different adapters"),
    ],
)
def test_a_group_is_whole_or_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        group(**changes)


def test_segments_break_where_a_prompt_does_not_extend_the_conversation() -> None:
    a, b = turn((1,), (2,)), turn((1, 2, 3), (4,))
    anew = turn((9,), (8,))
    assert segments((a, b, anew)) == [[a, b], [anew]]
    assert segments(()) == []


def test_a_step_of_several_environments_tells_the_figures_of_each() -> None:
    own = EnvSummary(8, 0.5, 0.25, 0.5, 1.0, 3.0, 60.0)
    step = dataclasses.replace(summary(), environments={"shop": own})
    found = step.in_env("shop")
    assert found is not None
    assert (found.n_trajectories, found.mean_reward, found.seconds) == (8, 0.5, {})
    assert step.in_env("sql") is None


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        trajectory().reward = 1.0  # type: ignore[misc]


def test_an_episode_ended_by_itself_where_no_limit_ended_it() -> None:
    stops = dict.fromkeys(StopReason, 1)
    limits = {
        *(StopReason.MAX_TURNS, StopReason.REPLY_CUT),
        *(StopReason.CONTEXT_FULL, StopReason.TIME_LIMIT),
    }
    assert ended_by_themselves(stops) == len(stops) - len(limits)
    assert not any(reason.by_itself for reason in limits)


def test_a_turn_is_trained_with_its_own_advantage_or_with_its_trajectorys() -> None:
    turns = (turn((1,), (2,)), turn((1, 2, 3), (4,)))
    pair = {"trajectories": (trajectory(0, turns), trajectory(1)), "advantages": (-0.5, 0.5)}
    assert group(**pair).by_turn == ((-0.5, -0.5), (0.5,))
    own = ((0.25, -1.0), (0.0,))
    assert group(**pair, turn_advantages=own).by_turn == own


def test_a_group_is_mixed_only_where_some_passed_and_some_did_not() -> None:
    draws = [Draw("t", Signal.LEARNABLE, passed, 4) for passed in (0, 1, 3, 4)]
    assert [d.mixed for d in draws] == [False, True, True, False]


few_ids = st.lists(st.integers(0, 1), max_size=7)


@given(few_ids, few_ids)
def test_what_sequences_have_in_common_is_their_longest_equal_beginning(
    before: list[int], ids: list[int]
) -> None:
    shorter = min(len(before), len(ids))
    by_hand = max(n for n in range(shorter + 1) if before[:n] == ids[:n])
    assert in_common(before, ids) == by_hand
    assert in_common(tuple(before), tuple(ids)) == by_hand
