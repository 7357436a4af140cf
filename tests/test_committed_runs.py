"""Every run that was ever committed stays readable, record by record."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import (
    Action,
    ActionKind,
    RolloutGroup,
    Sampling,
    Signal,
    StepSummary,
    StopReason,
    Trajectory,
    Turn,
    decode,
    decode_group,
    encode_group,
    read_bundle,
    read_trajectories,
)
from rollout.arm import TRAJECTORIES, read_eval
from scripts.base.checkout import ROOT
from trainer.batch import by_turn

RUNS = sorted(p.parent for p in (ROOT / "runs").glob("*/run.toml"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_committed_run_is_read_to_its_last_record(run: Path) -> None:
    steps = [
        decode(StepSummary, p.read_text(), str(p)) for p in sorted(run.glob("step-*/step.json"))
    ]
    assert [s.step for s in steps] == list(range(len(steps)))
    assert steps
    arms = [read_eval(p.parent) for p in run.glob("evals/*/eval.json")]
    assert {steps[0].adapter_sha, steps[-1].adapter_sha} <= {a.adapter_sha for a in arms}
    for bundle in run.glob("step-*/trajectory_bundle.jsonl"):
        assert read_bundle(bundle)
    for transcript in run.glob(f"evals/*/{TRAJECTORIES}"):
        assert read_trajectories(transcript)


def test_there_is_a_committed_run() -> None:
    assert "first-night" in {run.name for run in RUNS}


def group() -> RolloutGroup:
    turn = Turn(
        (1,), (2,), (-0.5,), "x", Action(ActionKind.RUN, "ls"), "y", 0, None, "stop", "v", 0, 0
    )
    grade = Grade((AssertionResult("file_exists", "a", True, ""),))
    played = [
        Trajectory(
            "t", k, 0, "sha", Sampling(1.0, 8, 1.0, 0, 0.0), (turn,) * (k + 1),
            StopReason.MAX_TURNS, grade, float(k), {},
        )
        for k in range(2)
    ]  # fmt: skip
    return RolloutGroup(1, "clawgym", "t", tuple(played), (-0.5, 0.5), Signal.LEARNABLE)


def test_a_bundle_from_before_turns_had_advantages_is_read_and_credited_by_episode() -> None:
    line = json.loads(encode_group(group()))
    del line["turn_advantages"]
    old = decode_group(json.dumps(line), "bundle:1")
    assert old == group()
    assert by_turn(old) == ((-0.5,), (0.5, 0.5))


RECORDS = {
    Turn: "prompt_ids completion_ids logprobs text action observation exit_code reward"
    " finish_reason policy_version seed seconds",
    Action: "kind command",
    Grade: "results",
    AssertionResult: "kind path passed detail",
    Trajectory: "task_id k seed adapter_sha sampling turns stop_reason grade reward metrics",
}
"""What stood in these records when the first runs were written, in that order."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_keeps_its_first_fields_and_later_ones_have_a_default(record: type) -> None:
    first = RECORDS[record].split()
    names = [f.name for f in fields(record)]
    assert names[: len(first)] == first
    later = fields(record)[len(first) :]
    assert [f.name for f in later if f.default is f.default_factory is MISSING] == []
