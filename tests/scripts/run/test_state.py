"""What a run folder says is next, under changed settings, deadlines and limits that were typed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import decode, encode
from fieldkit.errors import BadInput, PoolConverged
from fieldkit.files.journal import Journal
from fieldkit.records import StepSummary
from rollout.sandbox.command import SandboxSettings
from scripts.evidence.ending import EndKind, ending
from scripts.evidence.findings import read_findings
from scripts.night.loop_options import LoopOptions, with_options
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.next_phase import Phase
from scripts.run.plan import PAGE_SECONDS
from scripts.run.reader import RunReader
from scripts.run.state import (
    as_told,
    is_flat,
    look,
    raise_converged,
    read_files,
    read_measured,
    seconds_to_end,
)
from scripts.run.timings import Segment, write_timings
from tests.scripts.made_night import Night, make_night, timings
from tests.scripts.run.exhausted import LONG, exhausted_night, silence

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


def test_an_arm_that_was_taken_over_or_partly_kept_is_expected_to_take_what_it_takes_to_play(
    night: Night,
) -> None:
    """Copying it took a second; the last evaluation of the night will not."""
    copied = Segment("eval sha-0", "1", 100, 101, {"eval": 1.0})
    write_timings(night.folder.timings(0), timings(0).with_segment(copied))
    path = night.eval_of("sha-0") / "eval.json"
    arm = json.loads(path.read_text())
    files = replace(read_files(night.folder, night.config), adapters=("sha-0",))

    path.write_text(json.dumps({**arm, "seconds": 400.0}))
    assert read_measured(night.folder, files).eval_seconds == 400
    half = arm["n_trajectories"] // 2
    path.write_text(json.dumps({**arm, "seconds": 400.0, "n_kept": half}))
    assert read_measured(night.folder, files).eval_seconds == 800


def test_after_a_first_step_that_was_spared_the_reference_the_next_is_expected_to_take_it(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path, n_steps=1)
    files = read_files(night.folder, night.config)
    path = night.folder.summary(1)
    first = decode(StepSummary, path.read_text(), str(path))
    assert read_measured(night.folder, files).next_step_seconds == 80 + 0.43 * 30
    path.write_text(encode(replace(first, seconds={**first.seconds, "reference": 9.0})))
    assert read_measured(night.folder, files).next_step_seconds == 80
    path.write_text(encode(replace(first, train={})))  # without a KL none takes it
    assert read_measured(night.folder, files).next_step_seconds == 80
    path.write_text(encode(first))
    manifest = json.loads(night.folder.manifest.read_text())
    manifest["config"]["trainer"]["passes"] = 2  # of which the reference's logprobs serve both
    night.folder.manifest.write_text(json.dumps(manifest))
    assert read_measured(night.folder, files).next_step_seconds == 80 + 0.43 * 15
    night.folder.manifest.unlink()  # the start says that it is gone
    assert read_measured(night.folder, files).next_step_seconds == 80
    later = make_night(tmp_path / "later", n_steps=2)
    measured = read_measured(later.folder, read_files(later.folder, later.config))
    assert measured.next_step_seconds == 80


# --- a pool that teaches nothing any more ---------------------------------------------------------

CONVERGED = 3


def test_a_base_arm_for_the_end_waits_for_the_last_step_and_for_time(night: Night) -> None:
    shutil.rmtree(night.eval_of("base"))
    at_end = changed(night.config, "eval", base="end")
    assert look(night.folder, night.config)[0] is Phase.EVAL
    assert look(night.folder, at_end)[0] is Phase.EVAL  # a number of steps is no limit in time
    assert look(night.folder, changed(at_end, "run", steps=99))[0] is Phase.ROLLOUT
    assert look(night.folder, changed(at_end, "eval", base="never"))[0] is Phase.DONE
    assert look(night.folder, at_end, deadline=time.time() + 1)[0] is Phase.DONE


def test_the_time_left_holds_a_base_arm_that_comes_last_and_has_time(night: Night) -> None:
    shutil.rmtree(night.eval_of("base"))
    at_end = changed(night.config, "eval", base="end")

    def left(config: RunConfig, deadline_in: float | None = None) -> float | None:
        files = read_files(night.folder, config)
        measured = read_measured(night.folder, files)
        return seconds_to_end(config, files, STEPS + 2, measured, deadline_in)

    base = read_measured(night.folder, read_files(night.folder, at_end)).base_seconds
    without = left(night.config)
    assert without is not None
    assert base > 0
    assert left(at_end) == without + base
    assert left(at_end, without + base + PAGE_SECONDS) == without + base
    assert left(at_end, without + base + PAGE_SECONDS - 1) == without


@pytest.fixture
def exhausted(tmp_path: Path) -> Night:
    return exhausted_night(tmp_path)


def grpo(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `grpo` with these words."""
    command = [sys.executable, "-P", "-m", "scripts.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_pool_whose_newest_groups_are_silent_ends_the_night(exhausted: Night) -> None:
    assert look(exhausted.folder, exhausted.config) == (Phase.CONVERGED, 99)


def test_one_silent_step_is_no_evidence_about_the_pool(night: Night) -> None:
    config = changed(silence(night, [STEPS]).config, "run", steps=9)
    assert look(night.folder, config)[0] is Phase.ROLLOUT


@pytest.mark.parametrize("command", ["next", "run"])
def test_a_converged_pool_is_exit_3_with_the_evidence_and_the_commands_that_go_on(
    exhausted: Night, command: str
) -> None:
    ended = grpo(command, str(exhausted.folder.path))
    assert ended.returncode == PoolConverged.exit_code == CONVERGED, ended.stderr
    assert "of 4 tasks 0 learnable (0 of them revived), 4 saturated" in ended.stderr
    assert f"Add tasks to {exhausted.config.data.pool}" in ended.stderr
    assert f"`grpo run {exhausted.folder.typed}` goes on" in ended.stderr
    assert f'[model] adapter = "{exhausted.folder.adapter(LONG)}"' in ended.stderr
    assert ended.stdout == "" or command == "run"


def test_without_a_sandbox_the_command_that_is_named_says_so_too(exhausted: Night) -> None:
    unprotected = replace(exhausted.config, sandbox=SandboxSettings(kind="none"))
    with pytest.raises(PoolConverged, match="/night --sandbox none` goes on"):
        raise_converged(exhausted.folder, unprotected)


def test_a_night_ends_where_its_reward_rises_no_longer_if_that_was_asked_for(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path, n_steps=24)
    for n in range(1, 25):
        reward = (0.1 if n <= 8 else 0.5) + 0.01 * (n % 2)
        text = encode(replace(read_summary(night, n), mean_reward=reward))
        night.folder.summary(n).write_text(text + "\n")
    longer = changed(night.config, "run", steps=40)
    assert look(night.folder, longer) == (Phase.ROLLOUT, 40)
    asked = changed(longer, "run", stop_when_flat=True)
    assert look(night.folder, asked) == (Phase.DONE, 40)
    found = ending(read_findings(night.folder, asked))
    assert found.kind is EndKind.COMPLETE
    assert found.sentence.startswith(
        "Complete: 24 steps, and the evaluations. The reward has risen"
    )


def test_a_pool_that_grew_begins_the_rise_of_its_reward_anew(tmp_path: Path) -> None:
    """Up after step 8, at which tasks join, flat from there on, and up again after step 32."""
    night = make_night(tmp_path, n_steps=56)
    for n in range(1, 57):
        reward = (0.1 if n <= 8 else 0.5 if n <= 32 else 0.9) + 0.01 * (n % 2)
        text = encode(replace(read_summary(night, n), mean_reward=reward))
        night.folder.summary(n).write_text(text + "\n")
    manifest = json.loads(night.folder.manifest.read_text())
    grown = {"grown-001.jsonl": {"sha256": "0" * 64, "n": 8, "step": 8}}
    manifest["data"]["grown"] = grown

    def flat_after(steps: int, manifest: Any) -> bool:
        night.folder.manifest.write_text(json.dumps(manifest))
        copy = RunFolder(tmp_path / f"after-{steps}-{len(manifest['data'])}")
        shutil.copytree(night.folder.path, copy.path)
        for n in range(steps + 1, 57):
            shutil.rmtree(copy.step(n))
        return is_flat(RunReader(copy))

    without = {**manifest, "data": {k: v for k, v in manifest["data"].items() if k != "grown"}}
    assert [flat_after(32, m) for m in (without, manifest)] == [True, False]
    assert flat_after(56, manifest)


def read_summary(night: Night, n: int) -> StepSummary:
    return decode(StepSummary, night.folder.summary(n).read_text(), "summary")
