"""Replies that had no room, were cut, or were not understood."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fieldkit.records import Action, ActionKind, StopReason, Trajectory
from rollout.reply_faults import reply_faults
from tests.scripts.evals import trajectory


def episode(n_cut: int = 0, n_unread: int = 0) -> Trajectory:
    """Eight replies, some cut and others with nothing to run."""
    good = trajectory("a", "sha", held=4, turns=8, stopped=True)
    turns = list(good.turns)
    for i in range(n_cut):
        turns[i] = replace(turns[i], finish_reason="length")
    for i in range(n_unread):
        turns[-1 - i] = replace(turns[-1 - i], action=Action(ActionKind.NONE, ""), text="x" * 99)
    return replace(good, turns=tuple(turns))


def test_a_quarter_of_the_replies_may_be_so_and_more_is_told() -> None:
    assert reply_faults([episode(n_cut=2, n_unread=2)]) == ()
    (cut,) = reply_faults([episode(n_cut=3)])
    assert cut.startswith("3 of 8 replies were cut at rollout.max_new_tokens: raise it")
    (unread,) = reply_faults([episode(n_unread=3)])
    assert unread == f"3 of 8 replies had nothing to run, such as '{'x' * 80}'."


@pytest.mark.parametrize("episodes", [[], [episode()]])
def test_where_nothing_is_wrong_nothing_is_said(episodes: list[Trajectory]) -> None:
    assert reply_faults(episodes) == ()


def test_an_episode_without_room_for_a_reply_is_told_even_if_it_is_one() -> None:
    full = replace(episode(), turns=(), stop_reason=StopReason.CONTEXT_FULL)
    (said,) = reply_faults([full, episode(), episode()])
    assert said.startswith("1 of 3 episodes had no room for a reply")
