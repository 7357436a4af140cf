"""`grpo start` in the evening: the preflight shows whether a night would learn anything.

A policy that works half the time has groups whose rewards differ; cut off after its first token it
never does anything, so all of its rewards are equal. Real phases on the scripted engine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldkit.journal import Journal
from rollout.engine import find_engine, stop_engine
from scripts.run_folder import RunFolder
from tests.chaos.night import GRPO_RUN, SITE
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(1200)

BAD_INPUT = 2
MUTE = {"max_new_tokens": 1}


@pytest.fixture
def evening(policy: tuple[Path, Path], tmp_path: Path) -> Iterator[Callable[..., RunFolder]]:
    """Makes a run that is to be started with a preflight. It leaves no engine behind."""
    folder = tmp_path / "night"

    def make(**rollout: Any) -> RunFolder:
        changed = {"concurrency": 2, "max_turns": 2, "group_size": 4, **rollout}
        write_run(folder, *policy, run={"preflight": True}, rollout=changed)
        return RunFolder(folder)

    yield make
    if folder.exists():
        stop_engine(folder)


def grpo(command: str, folder: RunFolder, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `grpo COMMAND RUN` on the scripted engine, on a terminal wide enough for a table."""
    return subprocess.run(
        [*GRPO_RUN[:-1], command, str(folder.path), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SITE), "COLUMNS": "160"},
        check=False,
    )


def test_a_preflight_with_signal_shows_rewards_and_advantages_and_starts_the_run(
    evening: Callable[..., RunFolder],
) -> None:
    folder = evening()
    started = grpo("start", folder)
    assert started.returncode == 0, started.stderr
    assert folder.finished_steps() == 1
    assert "Preflight of step 0" in started.stdout
    assert "HAS_SIGNAL: " in started.stdout
    rows = json.loads(folder.preflight.read_text())["rows"]
    assert len(rows) == 4
    for row in rows:
        assert row["task_id"] in started.stdout
        assert " ".join(f"{r:.3f}" for r in row["rewards"]) in started.stdout
        assert " ".join(f"{a:+.2f}" for a in row["advantages"]) in started.stdout
    learnable = [row for row in rows if row["signal"] == "LEARNABLE"]
    assert learnable
    assert all(len(set(row["rewards"])) > 1 for row in learnable)

    # The server that the preflight started says how adapters will change on it, and why; once.
    (told,) = re.findall(r"engine: lifecycle (.+)", started.stdout)
    assert told.startswith(("hotswap: the server has ", "restart: "))
    (served,) = [e for e in Journal(folder.journal).read() if e.event == "adapter_served"]
    assert served.data["reason"] == told
    again = grpo("preflight", folder)
    assert again.returncode == 0, again.stderr
    assert "HAS_SIGNAL: " in again.stdout
    assert "engine: lifecycle" not in again.stdout


def test_a_preflight_without_signal_refuses_the_night_and_says_what_to_do(
    evening: Callable[..., RunFolder],
) -> None:
    folder = evening(**MUTE)
    refused = grpo("start", folder)
    assert refused.returncode == BAD_INPUT
    assert "0 of 4 groups have rewards that differ" in refused.stderr
    assert "A night would learn nothing: raise rollout.temperature" in refused.stderr
    assert f"`grpo start {folder.typed} --skip-preflight` starts it anyway" in refused.stderr
    assert "Preflight of step 0" in refused.stdout, "the rewards are shown before it is refused"
    assert not folder.manifest.exists()
    assert not folder.step(0).exists()
    assert folder.finished_steps() == 0


def test_a_night_is_started_without_a_preflight_where_the_person_says_so(
    evening: Callable[..., RunFolder],
) -> None:
    folder = evening(**MUTE)
    started = grpo("start", folder, "--skip-preflight")
    assert started.returncode == 0, started.stderr
    assert "Preflight" not in started.stdout
    assert folder.finished_steps() == 1
    assert find_engine(folder.path) is None, "nothing was played, so nothing needed a server"
