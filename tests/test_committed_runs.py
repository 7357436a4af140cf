"""Every run that was ever committed stays readable, record by record."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fieldkit.codec import decode, decode_group, encode_group
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import (
    Action,
    ActionKind,
    Draw,
    RolloutGroup,
    Sampling,
    Signal,
    StepSummary,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from reward.pool import pool_state
from reward.solve_rate import DrawSums
from rollout.arm import read_eval
from rollout.draw.base import Drawing
from rollout.draw.rules import DRAWS
from scripts.base.checkout import ROOT
from scripts.cli.app import app
from scripts.evidence.findings import Findings, read_findings
from scripts.evidence.pack import COMMITTED
from scripts.evidence.played import read_played
from scripts.evidence.stored import has_episodes
from scripts.run.config import read_config
from scripts.run.folder import open_run
from scripts.run.reader import RunReader


def committed() -> list[Path]:
    """The runs that git holds; a person's own lie in the same folder."""
    listed = subprocess.run(
        ["git", "ls-files", "runs/*/run.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return sorted((ROOT / line).parent for line in listed.stdout.splitlines())


RUNS = committed()


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_committed_run_is_read_to_its_last_record(run: Path) -> None:
    steps = [
        decode(StepSummary, p.read_text(), str(p)) for p in sorted(run.glob("step-*/step.json"))
    ]
    assert [s.step for s in steps] == list(range(len(steps)))
    assert steps
    arms = [read_eval(p.parent) for p in run.glob("evals/*/eval.json")]
    assert {steps[0].adapter_sha, steps[-1].adapter_sha} <= {a.adapter_sha for a in arms}
    for arm in arms:
        if has_episodes(run / "evals" / arm.key):
            assert read_played(run / "evals" / arm.key).summary == arm


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_pool_of_a_committed_run_has_not_converged_before_its_end(run: Path) -> None:
    """By the draws of its steps. Those of older runs tell only how many groups of a step had which
    signal, so the tasks to which these belong are tried out by chance."""
    reader = RunReader(open_run(run.name))
    assert reader.manifest is not None
    pool = list(reader.manifest["data"]["pool"]["tasks"])
    for trial in range(1 if all(step.draws for step in reader.steps[1:]) else 10):
        rng, sums = random.Random(trial), DrawSums()
        for step in reader.steps[1:]:
            sums = sums.plus(step.step, step.draws or by_chance(step, reader.manifest, rng))
            found = pool_state(sums, dict.fromkeys(pool, 1.0))
            assert found.share > 0.2
            assert found.probability < 0.01


def by_chance(step: StepSummary, manifest: Mapping[str, Any], rng: random.Random) -> list[Draw]:
    """Draws of the step's tasks with its signals in some order."""
    tasks = [Task(task, "", "", {}) for task in manifest["data"]["pool"]["tasks"]]
    batch, seed = (manifest["config"]["rollout"][k] for k in ("tasks_per_step", "run_seed"))
    signals = [Signal(name) for name, n in step.groups.items() for _ in range(n)]
    rng.shuffle(signals)
    drawn = DRAWS["uniform"](Drawing(seed, step.step, tasks, batch))
    return [
        Draw(task.task_id, signal, 2 if signal is Signal.LEARNABLE else 0, 4)
        for task, signal in zip(drawn, signals, strict=True)
    ]


def findings_of(run: Path) -> Findings:
    folder = open_run(run.name)
    return read_findings(folder, read_config(folder.config))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_committed_run_has_the_verdict_and_the_arms_of_its_evidence(run: Path) -> None:
    found = findings_of(run)
    stored = json.loads(found.folder.evidence.read_text())
    verdict = found.verdict
    assert verdict is not None
    assert (verdict.habit, verdict.work) == (stored["verdict"]["habit"], stored["verdict"]["work"])
    arms = [(a.name, a.passed, a.stopped) for a in found.require_evidence().arms]
    assert arms == [(a["name"], a["passed"], a["stopped"]) for a in stored["arms"]]


OF_EACH_KIND = {run.name.rstrip("-0123456789"): run for run in RUNS}.values()
"""Of several seeds, and of runs behind them, the last."""


@pytest.mark.parametrize("run", OF_EACH_KIND, ids=lambda run: run.name)
def test_looking_at_a_committed_run_works_and_changes_no_file_of_it(run: Path) -> None:
    def contents() -> dict[Path, bytes]:
        files = [p for pattern in COMMITTED for p in run.glob(pattern)]
        return {p: p.read_bytes() for p in files}

    before = contents()
    looks = [("table", run.name), ("report", run.name), ("watch", run.name, "--once")]
    if all(has_episodes(file.parent) for file in run.glob("evals/**/eval.json")):
        looks += [("show", run.name), ("replay", run.name)]
        looks.append(("compare", f"{run.name}@warm", run.name))
    said = {}
    for words in looks:
        shown = CliRunner().invoke(app, list(words))
        assert shown.exit_code == 0, shown.output
        said[words[0]] = " ".join(shown.output.split())
    verdict = findings_of(run).verdict
    assert verdict is not None
    assert verdict.headline in said["table"]
    assert contents() == before


@pytest.mark.parametrize("pattern", COMMITTED)
def test_git_takes_of_the_reference_run_all_that_pack_lists(pattern: str) -> None:
    file = f"runs/first-night/{pattern.replace('*', '000')}"
    ignored = subprocess.run(["git", "-C", str(ROOT), "check-ignore", "-q", "--no-index", file])
    assert ignored.returncode == 1, f".gitignore leaves out {file}"


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
    assert old.by_turn == ((-0.5,), (0.5, 0.5))


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
