"""Whole nights on a real server: two steps through kill-and-restart, and two through hot-swap.

The policy is a two-layer model that was taught two replies, so a night is a few minutes; every part
of it is the real one. Each night is run once, as a person runs it (one by grpo_loop.sh under nohup,
one by `grpo run`), and the tests read what it left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from scripts.base.checkout import ROOT
from tests.chaos.night import KILLED_CODES, Victim, alive, kill, require_readable, trained_twice
from tests.tiny_policy import write_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

STEPS = 2


@dataclass(frozen=True)
class Night:
    """What one night left: its folder and everything that it said."""

    folder: Path
    said: str

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def journal(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The journal's entries of this kind, in order."""
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        wanted = {"event": event, **fields}
        return [e for e in entries if wanted.items() <= e.items()]


GRPO_RUN = (sys.executable, "-P", "-m", "scripts.cli", "run")
GRPO_LOOP = ("nohup", str(ROOT / "scripts" / "grpo_loop.sh"))


@contextmanager
def running(
    folder: Path, loop_of: tuple[str, ...], cache: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A loop over `folder`, its lines readable as they come; ended at the latest on leaving.

    cache: a cache folder of its own.
    """
    loop = subprocess.Popen(
        [*loop_of, str(folder)],
        env={**os.environ, **({"GRPO_CACHE": str(cache)} if cache else {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield loop
    finally:
        loop.kill()
        loop.wait()
        assert loop.stdout is not None
        loop.stdout.close()


def run_through(
    folder: Path, loop_of: tuple[str, ...] = GRPO_RUN, cache: Path | None = None
) -> Night:
    """Run the night to its end."""
    with running(folder, loop_of, cache) as loop:
        said, _ = loop.communicate()
    assert loop.returncode == 0, said
    return Night(folder, said)


def kill_at(folder: Path, line_with: str, victim: Victim) -> str:
    """SIGKILL the victim as soon as the loop says a line with these words, and let the loop end.

    Returns all that it said.
    """
    with running(folder, GRPO_RUN) as loop:
        assert loop.stdout is not None
        said = []
        for line in loop.stdout:
            said.append(line)
            if line_with in line:
                assert kill(folder, loop, victim), f"no {victim} lives"
                break
        else:
            pytest.fail(f"it never said {line_with!r}:\n{''.join(said)}")
        said.append(loop.stdout.read())
        assert loop.wait() in (0, *KILLED_CODES), "".join(said)
    require_readable(folder)
    return "".join(said)


@pytest.fixture(scope="module")
def restarted(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A night under the lifecycle restart, by the loop in bash."""
    folder = tmp_path_factory.mktemp("nights") / "restarted"
    engine = {"lifecycle": "restart", "kv_cache_gib": 0.25, "max_model_len": 512}
    write_run(folder, *policy, engine={**engine, "dtype": "float32"})
    return run_through(folder, GRPO_LOOP, folder.parent / "cache")


@pytest.fixture(scope="module")
def killed(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A night under hot-swap that was killed twice and run again: the loop while step 1 was being
    trained, and vLLM's EngineCore as step 2 began."""
    folder = tmp_path_factory.mktemp("nights") / "killed"
    engine = {"lifecycle": "hotswap", "kv_cache_gib": 0.25, "max_model_len": 512}
    write_run(folder, *policy, engine={**engine, "dtype": "float32"})
    kill_at(folder, f"step 1/{STEPS} · train", Victim.LOOP)
    assert (folder / "step-001" / "trajectory_bundle.jsonl").is_file()
    assert not (folder / "step-001" / "step.json").exists()
    said = kill_at(folder, f"step 2/{STEPS} · rollout", Victim.ENGINE_CORE)
    night = run_through(folder)  # a loop whose engine was killed may have mended it by itself
    return replace(night, said=said + night.said)


@pytest.fixture(params=["restarted", "killed"])
def night(request: pytest.FixtureRequest) -> Night:
    found: Night = request.getfixturevalue(request.param)
    return found


def test_every_step_starts_where_the_last_one_ended(night: Night) -> None:
    steps = [night.json(f"step-{n:03d}/step.json") for n in range(STEPS + 1)]
    assert [s["parent_sha"] for s in steps[1:]] == [s["adapter_sha"] for s in steps[:-1]]
    assert not (night.folder / f"step-{STEPS + 1:03d}").exists()


def test_a_step_that_had_signal_changed_the_adapter(night: Night) -> None:
    steps = [night.json(f"step-{n:03d}/step.json") for n in range(1, STEPS + 1)]
    trained = [s for s in steps if s["outcome"] == "TRAINED"]
    assert trained, "no step of the night had signal"
    assert all(s["adapter_sha"] != s["parent_sha"] for s in trained)
    assert all(s["train"]["delta_l2"] > 0 for s in trained)


def test_in_float32_trainer_and_sampler_agree(night: Night) -> None:
    steps = [night.json(f"step-{n:03d}/step.json") for n in range(1, STEPS + 1)]
    differences = [s["train"]["sampler_mean_abs"] for s in steps if s["outcome"] == "TRAINED"]
    # Two programs sum in different orders: 2e-6 with AVX-512, 1.5e-5 with AVX2. Another adapter,
    # temperature or mask is 1e-2 and more.
    assert max(differences) <= 5e-5


def test_the_seconds_of_the_phases_add_up_to_the_wall_of_the_step(night: Night) -> None:
    for n in range(1, STEPS + 1):
        timings = night.json(f"step-{n:03d}/timings.json")
        # A second: between two phases a process ends and another starts, on a machine that tests.
        assert sum(timings["seconds"].values()) == pytest.approx(timings["wall"], rel=0.05, abs=1.0)


def test_the_morning_has_a_table_a_verdict_and_a_curve(night: Night) -> None:
    page = (night.folder / "evidence.md").read_text()
    for arm in ("do-nothing", "oracle", "base", "warm start", f"step {STEPS}"):
        assert arm in page
        assert arm in night.said
    assert (night.folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_left_behind(night: Night) -> None:
    assert alive(night.folder) == []


def test_no_step_is_trained_twice(night: Night) -> None:
    assert trained_twice(night.folder) == []


def test_every_adapter_that_was_trained_was_served_from_a_fresh_engine(restarted: Night) -> None:
    served = restarted.journal("adapter_served")
    assert {e["lifecycle"] for e in served} == {"restart"}
    assert len(list((restarted.folder / "log").glob("engine-*.log"))) >= STEPS + 1


def test_each_step_under_restart_finds_a_trainer_that_has_imported_its_libraries(
    restarted: Night,
) -> None:
    logs = [file.read_text() for file in (restarted.folder / "log").glob("train-0*.log")]
    assert len(logs) == STEPS
    loaded = [log for log in logs if "imported in" in log]
    assert loaded, "no step of the night had signal"
    assert all("imported in 0.0 s" in log for log in loaded)


def test_a_killed_loop_goes_on_with_the_engine_and_the_bundle_that_were_there(
    killed: Night,
) -> None:
    assert (killed.folder / "step-001" / "step.json").exists()
    rollouts = killed.journal("phase_end", phase="rollout", exit=0)
    assert len(rollouts) == STEPS, "the bundle of the step that was killed was played twice"


def test_a_night_whose_engine_core_was_killed_goes_on_with_a_new_server(killed: Night) -> None:
    engines = list((killed.folder / "log").glob("engine-*.log"))
    assert len(engines) == 2, "one, and one more after the EngineCore was killed"
    assert alive(killed.folder) == []


def test_a_night_that_is_over_is_over(restarted: Night) -> None:
    again = run_through(restarted.folder)
    assert "trained" not in again.said
    assert restarted.journal("loop_end")[-1]["next"] == "done"


def test_a_night_is_scored_again_under_another_reward(restarted: Night) -> None:
    words = [*GRPO_RUN[:-1], "replay", str(restarted.folder), "--reward", "binary"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Training rollouts under reward binary" in ended.stdout
    assert "groups" in ended.stdout
