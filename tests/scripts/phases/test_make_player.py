"""What the display is told of episodes while they are played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fieldkit.records import StopReason
from rollout.flight import RolloutProgress
from scripts.base.events import Event
from scripts.phases.context import Context
from scripts.phases.make_player import show


def after(finished: int, turns: int, mean: float | None) -> RolloutProgress:
    """A phase of eight episodes. turns: taken by all of them so far. mean: of the finished ones."""
    return RolloutProgress(
        finished=finished,
        total=8,
        kept=0,
        turns=turns,
        tokens=10 * turns,
        seconds=2.0,
        mean_reward=None if mean is None else 0.5,
        mean_turns=mean,
        stops={StopReason.TASK_COMPLETE: finished},
    )


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        (after(0, 7, None), {"tokens_per_s": 35.0}),
        (
            after(2, 14, 4.0),
            {"tokens_per_s": 70.0, "turns": 4.0, "reward": 0.5, "stop_rate": 1.0},
        ),
    ],
)
def test_turns_stand_beside_reward_and_stops_and_are_of_finished_episodes_as_they_are(
    progress: RolloutProgress, told: dict[str, float]
) -> None:
    events: list[Event] = []
    show(cast(Context, SimpleNamespace(tell=events.append)))(progress)
    (event,) = events
    assert (event.done, event.total) == (progress.finished, 8)
    assert event.figures == told
