"""Stored evaluations as tables need them: all figures, and transcripts of the arms shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollout.yardsticks import ORACLE
from scripts.evidence.collect import collect, outcome
from scripts.evidence.played import (
    BASE,
    WARM_START,
    arm_names,
    counted,
    read_arms,
    read_named,
    reading_order,
)
from scripts.run.reader import RunReader
from tests.scripts.evals import write_eval
from tests.scripts.made_night import Night, after, make_night, tasks

STEPS = 4


@pytest.fixture
def night(tmp_path: Path) -> Night:
    """Evaluated on the way too."""
    night = make_night(tmp_path, n_steps=STEPS)
    on = tasks(24)
    write_eval(night.folder.evals, after(on, "sha-2", 4), on, arm="step 2")
    return night


def test_the_figures_are_those_of_whole_episodes(night: Night) -> None:
    on, steps = tasks(24), RunReader(night.folder).steps
    names = arm_names(steps)
    whole = {names[sha]: arm for sha, arm in read_arms(night.folder.evals, on).items()}
    whole = {name: whole[name] for name in sorted(whole, key=reading_order)}
    found = read_named(night.folder.evals, on, steps, "night")
    assert list(found) == list(whole)
    assert collect(found, on, None, ()) == collect(whole, on, None, ())


def test_transcripts_are_kept_of_the_arms_that_are_shown(night: Night) -> None:
    on, steps = tasks(24), RunReader(night.folder).steps
    found = read_named(night.folder.evals, on, steps, "night")
    shown = {name for name, arm in found.items() if any(t.text for t in arm.trajectories[0].turns)}
    assert shown <= {ORACLE, WARM_START, f"step {STEPS}"}
    assert found[ORACLE].trajectories == read_arms(night.folder.evals, on)[ORACLE].trajectories
    assert all(not turn.prompt_ids for turn in found[BASE].trajectories[0].turns)
    assert found[WARM_START].trajectories[0].turns[0].prompt_ids


def test_a_counted_attempt_counts_alike(night: Night) -> None:
    arm = read_arms(night.folder.evals, tasks(24))["sha-2"]
    for whole in arm.trajectories:
        assert outcome(counted(whole)) == outcome(whole)
        assert replace(counted(whole), turns=()) == replace(whole, turns=())
