"""What the page's sections compute of a run, and which arms their charts draw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.engine.engine_settings import EngineSettings
from rollout.settings import RolloutSettings
from rollout.yardsticks import YARDSTICKS
from scripts.evidence.findings import read_findings
from scripts.report import drawing, sections
from scripts.report.sections import seats
from scripts.run.config import RunConfig
from tests.scripts.made_night import make_night

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


def test_a_long_night_s_charts_keep_the_arms_that_the_page_speaks_of(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    evidence = read_findings(night.folder, night.config).evidence
    assert evidence is not None
    (paired, *_), played = evidence.paired, [*evidence.stops]
    steps = [f"step {n}" for n in range(100, 140)]
    long = replace(
        evidence,
        stops={**evidence.stops, **{name: {"MAX_TURNS": 1} for name in steps}},
        paired=(*evidence.paired, *(replace(paired, name=name) for name in steps)),
    )
    with drawing.style():
        drawn = sections._endings_chart(long), sections._differences_chart(long)
    (endings, said), (differences, of_differences) = ((f"{svg}", text) for svg, text in drawn)
    assert [name for name in played if name not in YARDSTICKS and f">{name}<" not in endings] == []
    assert said == f"12 of {len([*played, *steps]) - 2} arms; all are in the table."
    assert f"{evidence.newest}: tasks passed" in differences
    assert differences.count(": tasks passed") == 12
    assert of_differences.startswith("12 of 4")
