"""What the display is told of episodes while they are played, and what is done while an engine
loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fieldkit.records import StopReason
from rollout.flight import RolloutProgress
from scripts.base.events import Event
from scripts.base.signals import Wish
from scripts.phases import make_player
from scripts.phases.context import Context
from scripts.phases.make_player import serve_and_render, show
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch


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


@pytest.mark.parametrize("for_training", [True, False])
def test_trainer_and_tokenizer_are_loaded_when_the_engine_has_looked_at_the_cores(
    for_training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a core, and an engine that finds one in use lets its threads sleep."""
    done: list[str] = []

    def ensure(*_: Any, meanwhile: Callable[[], None], **__: Any) -> tuple[()]:
        assert not done
        done.append("looked")
        meanwhile()
        meanwhile()
        return ()

    monkeypatch.setattr(make_player, "ensure_engine", ensure)
    monkeypatch.setattr(make_player, "begin_trainer", lambda ctx: done.append("trainer"))
    monkeypatch.setattr(make_player, "chat_renderer", lambda *_: done.append("tokenizer"))
    monkeypatch.setattr(Context, "model_dir", lambda ctx: tmp_path)
    monkeypatch.setattr(Context, "engine", lambda ctx: ctx.config.engine)
    config, watch = RunConfig(), Stopwatch(0.0)
    ctx = Context(RunFolder(tmp_path), config, lambda event: None, Wish(), watch)
    serve_and_render(ctx, None, "v", for_training=for_training)
    assert done[0] == "looked"
    assert done.count("tokenizer") == 1
    assert ("trainer" in done) is for_training
