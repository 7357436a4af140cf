"""What the page's sections compute of a run's settings."""

from __future__ import annotations

from typing import Any

import pytest

from rollout.engine.engine_settings import EngineSettings
from rollout.settings import RolloutSettings
from scripts.report.sections import seats
from scripts.run.config import RunConfig

URLS = ["http://box:8000", "http://other:8000"]


@pytest.mark.parametrize(
    ("engine", "at_once"),
    [
        ({}, 64),
        ({"replicas": 2}, 128),
        ({"data_parallel": 2}, 128),
        ({"max_num_seqs": 16}, 16),
        ({"urls": URLS, "max_num_seqs": 16}, 256),
    ],
)
def test_every_server_has_seats_of_its_own(engine: dict[str, Any], at_once: int) -> None:
    rollout = RolloutSettings(tasks_per_step=32, group_size=8)
    engine = {"max_num_seqs": 64} | engine
    assert seats(RunConfig(rollout=rollout, engine=EngineSettings(**engine))) == at_once


def test_a_number_that_was_asked_for_is_the_most() -> None:
    rollout = RolloutSettings(tasks_per_step=32, group_size=8, concurrency=10)
    assert seats(RunConfig(rollout=rollout, engine=EngineSettings(replicas=3))) == 10
