"""`grpo start` in the evening: the preflight shows whether a night would learn anything.

A policy that works half the time has groups whose rewards differ; cut off after its first token it
never does anything, so all of its rewards are equal. Real phases on the scripted engine.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.journal import Journal
from rollout.engine.serve import find_engine, stop_engine
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.phases.registry import SKIP_PREFLIGHT
from scripts.phases.start import _minutes, start
from scripts.phases.usual import Foresight
from scripts.run.config import NightSettings, read_config
from scripts.run.folder import RunFolder
from scripts.run.memory_account import FORECAST
from scripts.run.timings import LOOP_VARIABLE, Stopwatch
from tests.chaos.night import GRPO_RUN, SITE
from tests.scripts.made_night import make_night
from tests.tiny_policy import write_run, write_tasks

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
    again = grpo("preflight", folder, "--json")
    assert again.returncode == 0, again.stderr
    assert "HAS_SIGNAL: " in again.stderr
    assert "engine: lifecycle" not in again.stderr
    assert len(json.loads(again.stdout)["rows"]) == 4


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


def test_a_preflight_is_paid_as_the_step_that_comes_next(
    evening: Callable[..., RunFolder],
) -> None:
    folder = evening(**MUTE)
    with folder.config.open("a") as config:
        config.write("[reward]\nturn_penalty = 0.0\n[reward.schedule]\nturn_penalty = [[1, 1.0]]\n")
    grpo("preflight", folder)
    rows = json.loads(folder.preflight.read_text())["rows"]
    rewards = [reward for row in rows for reward in row["rewards"]]
    assert rewards
    assert max(rewards) < 0, "nobody stops early, so the price of turns is more than can be earned"


def test_a_night_is_started_without_a_preflight_where_the_person_says_so(
    evening: Callable[..., RunFolder],
) -> None:
    folder = evening(**MUTE)
    started = grpo("start", folder, "--skip-preflight")
    assert started.returncode == 0, started.stderr
    assert "Preflight" not in started.stdout
    assert folder.finished_steps() == 1
    assert find_engine(folder.path) is None, "nothing was played, so nothing needed a server"


# --- settings that change between two starts ------------------------------------------------------


def begin(folder: RunFolder, *, preflight: bool = False) -> list[str]:
    """What `grpo start` does, in this process; what it told."""
    told: list[str] = []
    config = read_config(folder.config)
    watch = Stopwatch(time.time())
    ctx = Context(folder, config, lambda event: told.append(event.text), Wish(), watch)
    ctx.flags = frozenset() if preflight else frozenset({SKIP_PREFLIGHT})
    start(ctx)
    return told


def play(folder: RunFolder) -> list[Path]:
    """Leave one finished arm and one that is being played, as far as `start` looks at them."""
    finished, partly = folder.evals / "aaaa" / "eval.json", folder.evals / "bbbb" / "partial.jsonl"
    for path in (finished, partly):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    return [finished, partly]


def change(folder: RunFolder, old: str, new: str) -> None:
    text = folder.config.read_text()
    assert old in text
    folder.config.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("lr = ", "lr = 1", True),
        ("[model]", "[sandbox]\noutput_chars = 77\n\n[model]", False),
        ("max_turns = 2", "max_turns = 1", False),
        ("[model]", "[reward]\nfinish_bonus = 1.0\n\n[model]", False),
        ("max_turns = 2", "max_turns = 2\ntemperature = 0.8", False),
    ],
    ids=[
        "what is learned",
        "what a command may print",
        "how long an attempt is",
        "what is paid for",
        "the training temperature",
    ],
)
def test_a_start_with_changed_settings_keeps_the_arms_that_would_be_played_alike(
    evening: Callable[..., RunFolder], old: str, new: str, kept: bool
) -> None:
    folder = evening()
    begin(folder)
    arms = play(folder)
    change(folder, old, new)
    begin(folder)
    assert [path.exists() for path in arms] == [kept, kept]
    dropped = [e.data["removed"] for e in Journal(folder.journal).read() if e.event == "dropped"]
    assert (["evals/aaaa"] in dropped, ["evals/bbbb"] in dropped) == (not kept, not kept)


def test_a_start_with_changed_settings_leaves_no_rollout_of_the_old_ones(
    evening: Callable[..., RunFolder],
) -> None:
    """With an overlap the second step's may be there before the first one is trained."""
    folder = evening()
    begin(folder)
    for n in (1, 2):
        folder.bundle(n).parent.mkdir(parents=True)
        folder.bundle(n).write_text("{}\n")
    change(folder, "max_turns = 2", "max_turns = 1")
    begin(folder)
    assert [folder.step(n).exists() for n in (0, 1, 2)] == [True, False, False]


def test_a_start_that_fails_leaves_the_arms_and_what_says_how_they_were_played(
    evening: Callable[..., RunFolder],
) -> None:
    folder = evening()
    begin(folder)
    before, arms = folder.manifest.read_text(), play(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        change(folder, "lr = ", "lr = 1")
        change(folder, "[engine]", f"[engine]\nport = {taken.getsockname()[1]}")
        with pytest.raises(Unavailable, match="is busy"):
            begin(folder, preflight=True)
    assert folder.manifest.read_text() == before
    assert all(path.exists() for path in arms)
    assert folder.finished_steps() == 0


def tasks_of(folder: RunFolder) -> tuple[Any, Any]:
    """The number of held-out tasks in the manifest, and what it says of fewer."""
    manifest = json.loads(folder.manifest.read_text())
    return manifest["config"]["eval"]["tasks"], manifest.get("fewer_tasks")


@pytest.fixture
def open_number(policy: tuple[Path, Path], tmp_path: Path) -> Iterator[RunFolder]:
    """A run with fifty held-out tasks that is left to settle how many of them it plays."""
    heldout = write_tasks(tmp_path / "fifty.jsonl", 50, "held")
    pool = write_tasks(tmp_path / "pool.jsonl", 6, "pool")
    path = write_run(
        tmp_path / "night",
        *policy,
        run={"steps": "auto", "minutes": 7, "preflight": True},
        data={"pool": str(pool), "heldout": str(heldout)},
        eval={"tasks": "auto", "tasks_at_training_temperature": 0, "base": "never"},
    )
    folder = RunFolder(path)
    yield folder
    stop_engine(folder.path)


def test_a_short_night_settles_on_fewer_held_out_tasks_before_an_arm_is_played(
    open_number: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What such a night would bring is made up; all else is played."""
    folder = open_number
    monkeypatch.setenv("PYTHONPATH", str(SITE))
    monkeypatch.setattr("scripts.phases.start.alike", lambda nights, settings: nights[:1])
    monkeypatch.setattr(
        "scripts.phases.start.foresee",
        lambda nights, *, tasks, **_: Foresight(12 - tasks // 8, enough=9, minutes=9.0, of=1),
    )
    told = begin(folder, preflight=True)
    (forecast,) = [text for text in told if text.startswith("forecast: ")]
    assert "about 9 steps in 7 minutes" in forecast
    assert "evaluations play the first 24 held-out tasks, not 48" in forecast
    assert f"`grpo run {folder.typed} --set eval.tasks=48` before the first step" in forecast
    assert tasks_of(folder) == (24, {"usual": 48})
    assert "started already" in grpo("start", folder).stdout

    played = grpo("eval", folder)
    assert played.returncode == 0, played.stderr
    arms = [json.loads(arm.read_text()) for arm in folder.evals.glob("*/eval.json")]
    assert {(arm["arm"], arm["n_tasks"]) for arm in arms} == {
        ("do-nothing", 24),
        ("oracle", 24),
        ("warm start", 24),
    }
    assert "The night was short, so 24 tasks were played of the usual 48" in played.stdout
    assert grpo("next", folder).stdout.split() == ["rollout"]

    # Another setting before the first step: what was settled stays, and so do the arms.
    change(folder, "lr = ", "lr = 1")
    begin(folder)
    assert tasks_of(folder) == (24, {"usual": 48})
    assert len([*folder.evals.glob("*/eval.json")]) == len(arms)
    assert grpo("next", folder).stdout.split() == ["rollout"]
    # A number of one's own is none that a run may settle.
    change(folder, 'tasks = "auto"', "tasks = 30")
    begin(folder)
    assert tasks_of(folder) == (30, None)
    assert [*folder.evals.glob("*/eval.json")] == []


def test_a_start_that_was_typed_has_none_of_the_limits_of_an_earlier_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = make_night(tmp_path)
    limits = {"steps": "auto", "until": time.time() - 3600}
    Journal(night.folder.journal).append("loop_start", limits=limits)
    config = replace(night.config, run=NightSettings(minutes=7))
    watch = Stopwatch(time.time())
    ctx = Context(night.folder, config, lambda event: None, Wish(), watch)
    monkeypatch.delenv(LOOP_VARIABLE, raising=False)
    assert _minutes(ctx) == 7
    monkeypatch.setenv(LOOP_VARIABLE, str(os.getpid()))
    assert _minutes(ctx) == pytest.approx(-60, abs=0.1), "that loop's own start has its limits"


def test_a_night_without_a_forecast_plays_as_many_as_a_long_one(open_number: RunFolder) -> None:
    begin(open_number)
    assert tasks_of(open_number) == (48, None)
    change(open_number, 'tasks = "auto"', "tasks = 48")
    assert "started already" in grpo("start", open_number).stdout


def test_a_night_whose_manifest_is_gone_is_refused_and_not_started_for_ever(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path)
    night.folder.manifest.unlink()
    with pytest.raises(BadInput, match=r"manifest\.json: no such file, and 8 steps .* Put it back"):
        begin(night.folder)


def test_a_start_on_a_cluster_asks_and_tells_nothing_of_the_memory_of_the_machine_it_is_typed_on(
    policy: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_small(*_: object) -> int:
        raise BadInput("engine.gpu_memory_utilization: 0.4 of 32 GiB")

    monkeypatch.setattr("rollout.engine.forecast.memory_needed", too_small)
    monkeypatch.setattr("scripts.phases.checks.check_cluster", lambda ctx: "one node")
    here = RunFolder(write_run(tmp_path / "here", *policy))
    with pytest.raises(BadInput, match="gpu_memory_utilization"):
        begin(here)
    there = RunFolder(write_run(tmp_path / "there", *policy, cluster={"kind": "ray"}))
    begin(there)
    assert there.finished_steps() == 1
    assert FORECAST not in [e.event for e in Journal(there.journal).read()]
