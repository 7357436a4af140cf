"""What a run folder says is next, under changed settings, deadlines and limits that were typed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.journal import Journal
from scripts.config import RunConfig
from scripts.loop import Phase
from scripts.run_loop import LoopOptions, with_options
from scripts.state import as_told, look, read_files
from tests.scripts.report.night import Night, make_night

STEPS = 3


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return make_night(tmp_path, n_steps=STEPS)


def changed(config: RunConfig, table: str, **keys: Any) -> RunConfig:
    return replace(config, **{table: replace(getattr(config, table), **keys)})


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ("trainer", {"tokens_per_microbatch": 1024}),
        ("trainer", {"gradient_checkpointing": True}),
        ("trainer", {"max_segment_tokens": 32768}),
        ("rollout", {"concurrency": 8}),
        ("engine", {"gpu_memory_utilization": 0.3}),
        ("engine", {"port": 8123}),
        ("run", {"steps": 9}),
    ],
)
def test_what_an_error_tells_a_person_to_set_can_be_set_in_the_middle_of_a_night(
    night: Night, table: str, keys: dict[str, Any]
) -> None:
    assert read_files(night.folder, changed(night.config, table, **keys)).newest == STEPS


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ("trainer", {"lr": 1.0}),
        ("rollout", {"temperature": 0.5}),
        ("reward", {"turn_penalty": 0.1}),
    ],
)
def test_what_the_night_is_cannot_be_changed_in_its_middle(
    night: Night, table: str, keys: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=f"{table}.{next(iter(keys))} was"):
        read_files(night.folder, changed(night.config, table, **keys))


def at_work(night: Night) -> RunConfig:
    """The night in its last step: the bundle is there, its training is not."""
    folder = night.folder
    for path in (folder.summary(STEPS), folder.timings(STEPS)):
        path.unlink()
    return changed(night.config, "run", steps="auto")


def test_a_bundle_that_is_there_is_trained_on_though_the_deadline_allows_no_further_step(
    night: Night,
) -> None:
    config = at_work(night)
    assert look(night.folder, config, time.time() + 1.0) == (Phase.TRAIN, STEPS)
    night.folder.bundle(STEPS).unlink()
    assert look(night.folder, config, time.time() + 1.0)[1] == STEPS - 1


def test_a_bundle_beyond_a_fixed_number_of_steps_is_left_alone_under_a_deadline_too(
    night: Night,
) -> None:
    config = changed(at_work(night), "run", steps=STEPS - 1)
    assert look(night.folder, config, time.time() + 1.0)[1] == STEPS - 1


def test_a_deadline_leaves_the_number_of_steps_in_the_file_as_the_most() -> None:
    config = changed(RunConfig(), "run", steps=34)
    assert with_options(config, LoopOptions(until="07:00")).run.steps == 34
    assert with_options(config, LoopOptions(minutes=60)).run.steps == "auto"


def test_what_was_typed_is_known_from_the_journal(night: Night) -> None:
    journal = Journal(night.folder.journal)
    run = changed(night.config, "run", steps="auto").run
    assert as_told(run, journal.read()) == (run, None)
    journal.append(
        "loop_start", limits={"steps": 3, "minutes": 45.0, "eval_every": 0, "until": 9.0}
    )
    told, deadline = as_told(run, journal.read())
    assert (told.steps, deadline) == (3, 9.0)
