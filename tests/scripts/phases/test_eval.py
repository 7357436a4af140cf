"""The eval phase on the scripted engine: the arms at a run's start, and those of one step."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, write_json
from fieldkit.files.journal import Journal
from rollout.arm import read_eval
from rollout.engine.serve import stop_engine
from scripts.base.events import Event
from scripts.base.signals import Wish
from scripts.evidence.findings import read_findings
from scripts.phases.context import Context
from scripts.phases.eval import evaluate
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from tests.chaos.night import GRPO_RUN, SITE
from tests.scripts.made_night import make_night
from tests.tiny_policy import write_run

ENV = {**os.environ, "PYTHONPATH": str(SITE)}


def grpo(*words: str, exit_code: int = 0) -> str:
    """Run a command of grpo that ends with this code; what it said."""
    done = subprocess.run([*GRPO_RUN[:-1], *words], env=ENV, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == exit_code, said
    return said


@pytest.fixture(scope="module")
def begun(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose start is evaluated: three held-out tasks at the training temperature, of four."""
    path = tmp_path_factory.mktemp("begun") / "night"
    folder = RunFolder(write_run(path, *policy, eval={"tasks_at_training_temperature": 3}))
    grpo("start", str(folder.path))
    grpo("eval", str(folder.path))
    stop_engine(folder.path)
    return folder


def test_an_adapter_also_plays_a_few_tasks_at_the_training_temperature(begun: RunFolder) -> None:
    (played,) = begun.training_evals.glob("*/eval.json")
    arm = read_eval(played.parent)
    assert (arm.arm, arm.temperature, arm.n_tasks) == ("warm start at T = 1", 1.0, 3)
    journal = Journal(begun.journal).read()
    wrote = {path for e in journal if e.event == "arm_played" for path in e.data["wrote"]}
    assert begun.relative(played.parent / "trajectories.jsonl") in wrote


def test_a_step_that_is_not_there_is_refused_and_leaves_no_trace_in_the_journal(
    begun: RunFolder,
) -> None:
    before = begun.journal.read_bytes()
    said = grpo("eval", str(begun.path), "--step", "999", exit_code=2)
    assert f"`grpo eval {begun.path} --step 0` evaluates the newest" in said.replace("\n", " ")
    assert begun.journal.read_bytes() == before


@pytest.fixture
def due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Context, list[str]]:
    """An eval phase with one arm to play, and what it tells. It plays nothing."""
    for part in ("_record_opening", "_play_at_training_temperature", "_play", "_finish"):
        monkeypatch.setattr(f"scripts.phases.eval.{part}", lambda *_: None)
    monkeypatch.setattr("scripts.phases.eval._keep_time", lambda *_: None)
    night, told = make_night(tmp_path, n_steps=1, evaluated=False), list[str]()

    def tell(event: Event) -> None:
        told.append(event.text)

    return Context(night.folder, night.config, tell, Wish(), Stopwatch(time.time())), told


def test_a_lineage_that_cannot_be_written_ends_no_night(
    due: tuple[Context, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: RunFolder) -> None:
        raise PermissionError(13, "Permission denied", "results.tsv")

    monkeypatch.setattr("scripts.phases.eval.record_run", refused)
    ctx, told = due
    assert evaluate(ctx).text == "1 arm(s) evaluated"
    assert told == ["the lineage is not recorded: [Errno 13] Permission denied: 'results.tsv'"]


@pytest.mark.parametrize("key", ["tasks_sha", "settings_sha"])
def test_an_arm_that_would_stay_due_is_refused_and_not_played_for_ever(
    due: tuple[Context, list[str]], key: str
) -> None:
    """As where a version of the program has added a setting of an episode."""
    ctx, _ = due
    manifest = read_json(ctx.folder.manifest)
    manifest["evaluation"][key] = "another"
    write_json(ctx.folder.manifest, manifest)
    with pytest.raises(BadInput, match=rf"evaluation\.{key}: .* Go back to the commit"):
        evaluate(ctx)


def test_the_base_arm_of_the_end_is_timed_after_the_newest_step(
    due: tuple[Context, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In those of step 0 the whole night would lie between two of its phases, and count twice."""
    kept: list[tuple[int, str]] = []
    monkeypatch.setattr("scripts.phases.eval._keep_time", lambda _, n, arm: kept.append((n, arm)))
    night = make_night(tmp_path / "late")
    shutil.rmtree(night.eval_of("base"))
    config = replace(night.config, eval=replace(night.config.eval, base="end"))
    ctx = due[0]
    evaluate(Context(night.folder, config, ctx.tell, ctx.wish, ctx.watch))
    (newest,) = {n for n, _ in kept}
    assert kept == [(newest, "base")]
    assert newest > 0


def test_it_is_no_arm_of_the_tables(begun: RunFolder) -> None:
    found = read_findings(begun, read_config(begun.config))
    assert not found.gaps
    arms = [a.name for a in found.require_evidence().arms]
    assert arms == ["do-nothing", "oracle", "base", "warm start"]


def test_a_kill_between_the_two_leaves_both_to_be_finished(
    begun: RunFolder, tmp_path: Path
) -> None:
    """The few tasks come first, so an arm that is not there is due with what belongs to it."""
    cut = RunFolder(shutil.copytree(begun.path, tmp_path / "night"))
    (warm,) = [p for p in cut.evals.glob("*/eval.json") if read_eval(p.parent).arm == "warm start"]
    shutil.rmtree(warm.parent)
    said = grpo("eval", str(cut.path))
    stop_engine(cut.path)
    assert "1 arm(s) evaluated" in said
    assert (warm.parent / "eval.json").is_file()
    assert len([*cut.training_evals.glob("*/eval.json")]) == 1


def test_a_base_arm_for_the_end_is_left_out_of_the_start_and_played_when_it_is_asked_for(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    late = RunFolder(write_run(tmp_path / "late", *policy, eval={"base": "end"}))
    run = str(late.path)
    grpo("start", run)
    assert "base:" not in grpo("eval", run)
    found = read_findings(late, read_config(late.config))
    assert [a.name for a in found.require_evidence().arms] == ["do-nothing", "oracle", "warm start"]
    assert grpo("next", run).split() == ["rollout"]
    assert "base: passed" in grpo("eval", run)
    stop_engine(late.path)
    # a neighbour gets it for nothing, with its other arms
    again = RunFolder(write_run(tmp_path / "again", *policy, eval={"base": "end"}))
    grpo("start", str(again.path))
    assert "base: taken over from another run" in grpo("eval", str(again.path))
    stop_engine(again.path)
    found = read_findings(again, read_config(again.config))
    assert "base" in [a.name for a in found.require_evidence().arms]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_in_the_middle_is_evaluated_once_and_can_be_compared(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    night = RunFolder(write_run(tmp_path / "night", *policy))
    run = str(night.path)
    grpo("run", run, "--steps", "2", "--keep-engine")
    unplayed = grpo("compare", run, f"{run}@1", exit_code=2)
    assert f"`grpo eval {run} --step 1` plays it" in unplayed
    try:
        assert "step 1: passed" in grpo("eval", run, "--step", "1")
        played = {read_json(p)["arm"] for p in night.evals.glob("*/eval.json")}
        assert {"step 1", "step 2", "warm start"} <= played
        assert "step 1 is evaluated already" in grpo("eval", run, "--step", "1")
        assert "night@1" in grpo("compare", run, f"{run}@1")
        said = grpo("eval", run, "--step", "9", exit_code=2)
        assert "has finished steps 0 to 2" in said
        assert f"`grpo eval {run} --step 2`" in said
    finally:
        grpo("stop", run)
