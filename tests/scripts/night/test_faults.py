"""What can happen to a night besides a kill at a random moment, done to real ones.

One short night on the two-layer model and the scripted engine is left in peace; the others are the
same from its first evening on, and something happens to them: somebody sets the clock back, the
machine stands still, the trainer is killed for memory, a rollout is killed halfway. Each has to end
with the adapter of the first one, to the byte: then nothing was lost, and nothing that happened was
counted against the policy.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from fieldkit.codec import read_bundle
from fieldkit.files.journal import Entry, Journal
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import environment, family, marked
from fieldkit.records import Signal, Trajectory
from rollout.engine.serve import find_engine, stop_engine
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.base.display import to_the_second
from scripts.phases.training.kept_trainer import TRAINER
from scripts.phases.training.trainer_failure import told_budget
from scripts.run.timings import Segment, StepTimings, Stopwatch, read_timings
from scripts.run.until import FORECAST, held
from scripts.watch.activity import State
from scripts.watch.frame import frame
from scripts.watch.sight import Watcher
from tests.chaos.night import Victim, alive, kill, require_readable
from tests.scripts.made_night import make_night
from tests.scripts.night.running import Night
from tests.tiny_policy import write_run
from trainer.footprint.budget import Budget

pytestmark = pytest.mark.timeout(1200)

HOUR = 3600.0
SHORTAGE = 5

HANG_SECONDS = 60.0
"""For which the trainer may be silent, and in a quarter of which an engine starts."""

REQUEST_SECONDS = 6.0
COMMAND_SECONDS = 5.0
STANDSTILL_SECONDS = 7.0
"""Longer than a request, a command and all of an episode's commands may take."""

SECRETS = {
    "HF_TOKEN": "hf_canary4711",
    "OPENAI_API_KEY": "sk-canary4711",
    "WANDB_API_KEY": "canary4711wandb",
}
"""What a person has in the environment. "canary4711" must be found nowhere."""


@pytest.fixture(scope="module")
def evening(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night that has played what it starts from, and no step yet."""
    folder = write_run(
        tmp_path_factory.mktemp("evening") / "night",
        *policy,
        run={"steps": 1},
        rollout={"concurrency": 2, "episode_seconds": COMMAND_SECONDS},
        sandbox={"command_seconds": COMMAND_SECONDS},
        engine={"lifecycle": "hotswap"},
    )
    night = Night(folder, **SECRETS)
    assert night.run("--steps", "0") == 0, night.said
    return folder


@pytest.fixture(scope="module")
def calm(evening: Path, tmp_path_factory: pytest.TempPathFactory) -> Night:
    """The night to which nothing happens."""
    night = Night(shutil.copytree(evening, tmp_path_factory.mktemp("calm") / "night"), **SECRETS)
    assert night.run() == 0, night.said
    return night


@pytest.fixture
def night(evening: Path, tmp_path: Path) -> Iterator[Night]:
    """The same night from its evening on. It leaves no engine behind."""
    night = Night(
        shutil.copytree(evening, tmp_path / "night"),
        GRPO_TEST_CLOCK=str(tmp_path / "clock"),
        GRPO_TEST_REQUEST_SECONDS=str(REQUEST_SECONDS),
    )
    yield night
    stop_engine(night.folder.path)


# --- the clock ------------------------------------------------------------------------------------


def set_clock(night: Night, seconds: float) -> None:
    """Set the night's clock wrong by so much, at once for all its programs."""
    clock = Path(night.env["GRPO_TEST_CLOCK"])
    fresh = clock.with_suffix(".new")
    fresh.write_text(str(seconds))
    fresh.replace(clock)


@pytest.mark.slow
def test_a_clock_that_is_set_back_twice_costs_the_night_nothing(calm: Night, night: Night) -> None:
    began = time.monotonic()
    with night.running() as loop:
        night.until(loop, lambda: night.events("phase_start", "train"))
        set_clock(night, -HOUR)
        night.until(loop, lambda: night.events("phase_end", "train"))
        set_clock(night, -2 * HOUR)
        assert loop.wait() == 0, night.said
    took = time.monotonic() - began
    assert night.trained() == calm.trained()
    assert_no_time_was_invented(night, took)
    set_clock(night, -3 * HOUR)
    assert night.run() == 0, "resumed before the time at which it had ended"
    assert night.events("phase_start", "train") == 1


def assert_no_time_was_invented(night: Night, took: float) -> None:
    """Though the journal went back by two hours. took: seconds of the loop."""
    journal = Journal(night.folder.journal).read()
    assert sum(b.time < a.time for a, b in itertools.pairwise(journal)) == 2
    (forecast,) = [e for e in journal if e.event == FORECAST]
    assert 0 < forecast.data["end"] - forecast.time < 2 * took
    measured = read_timings(night.folder.timings(1), 1)
    assert all(s.wall > 0 for s in measured.segments)
    assert 0 < measured.wall < took
    assert 0 < json.loads(night.folder.summary(1).read_text())["seconds"]["wall"] < took


def test_a_clock_set_back_between_two_phases_makes_no_step_an_hour_long() -> None:
    before = Segment("rollout", "77", HOUR, HOUR + 10, {"rollout": 10.0})
    after = Segment("train", "77", 12.0, 20.0, {"gradient": 8.0})
    step = StepTimings(1, (before, after))
    assert step.wall == 18
    assert step.seconds == {"rollout": 10.0, "gradient": 8.0}


def test_a_clock_set_forward_between_two_phases_or_in_one_makes_no_step_hours_long() -> None:
    before = Segment("rollout", "77", 10.0, 20.0, {"rollout": 10.0}, up=500.0)
    after = Segment("train", "77", 9 * HOUR, 9 * HOUR + 8, {"gradient": 8.0}, up=511.0)
    step = StepTimings(1, (before, after))
    assert step.wall == 19
    assert step.seconds == {"rollout": 10.0, "gradient": 8.0, "between": 1.0}


def test_a_clock_set_back_within_a_phase_shortens_it_by_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = time.time()
    watch = Stopwatch(began - 5)
    monkeypatch.setattr(time, "time", lambda: began - HOUR)
    segment = watch.segment("train")
    assert segment.began == began - 5
    assert segment.wall == pytest.approx(5, abs=1)


def test_a_forecast_made_before_the_clock_was_set_back_is_not_held_against_the_end() -> None:
    journal = [
        Entry(HOUR, 1, FORECAST, {"steps": 3, "end": 2 * HOUR}),
        Entry(600.0, 1, "phase_end", {"phase": "eval", "exit": 0}),
    ]
    assert held(journal, 3) is None


def test_a_phase_that_seems_to_begin_in_an_hour_is_watched_as_one_that_has_just_begun(
    tmp_path: Path,
) -> None:
    made = make_night(tmp_path, n_steps=4, evaluated=False)
    made.folder.config.write_text("[run]\nsteps = 6\n[rollout]\ntasks_per_step = 2\n")
    idle = Watcher(made.folder).look().left
    head = {"schema": 1, "time": time.time() + HOUR, "pid": os.getpid(), "event": "phase_start"}
    with open(made.folder.journal, "a", encoding="utf-8") as f:
        f.write(json.dumps({**head, "phase": "train"}) + "\n")
    sight = Watcher(made.folder).look()
    assert sight.activity.state is State.WORKING
    assert sight.left == idle
    assert sight.progress is not None
    assert sight.progress.done == 0
    console = Console(record=True, width=120, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    console.print(frame(sight, console))
    assert "train for 0 s" in console.export_text()


# --- a machine that stands still ------------------------------------------------------------------


@contextmanager
def standing_still(pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes and all that they started, as a paused virtual machine does."""
    stopped: list[psutil.Process] = []
    for leader in map(psutil.Process, pids):
        leader.suspend()  # first, so that it starts nothing while its children are looked up
        stopped.append(leader)
        for child in leader.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # one that ends between the two needs no stop
                child.suspend()
                stopped.append(child)
    try:
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):  # one resumed before may have ended it
                process.resume()


@pytest.mark.slow
def test_a_machine_that_stood_still_longer_than_every_timeout_loses_nothing(
    calm: Night, night: Night
) -> None:
    with night.running() as loop:
        night.until(loop, night.finished_episodes)
        engine = Ledger(night.folder.ledger).get("engine")
        assert engine is not None
        with standing_still([loop.pid, *family(engine.marker)]):
            assert not night.folder.bundle(1).exists(), "the rollout was over before it was stopped"
            time.sleep(STANDSTILL_SECONDS)
        assert loop.wait() == 0, night.said
    assert night.trained() == calm.trained()
    assert night.events("phase_start", "rollout") == 1
    assert [t.reward for t in played(night)] == [t.reward for t in played(calm)]


def played(night: Night) -> list[Trajectory]:
    return [t for group in read_bundle(night.folder.bundle(1)) for t in group.trajectories]


# One episode of one command, played as a rollout plays it; prints how it ended.
PLAY = f"""
import asyncio, json, sys, time
from dataclasses import replace
from pathlib import Path
from rollout.envs.base import Site
from rollout.envs.registry import make_world
from rollout.flight import Attempt, fly
from rollout.settings import EpisodeSettings
from tests.rollout.scripted import bash, player, replies, sandbox_settings, write_task

here = Path(sys.argv[1])
box = replace(sandbox_settings(), command_seconds={COMMAND_SECONDS})
one = player(
    here,
    replies(bash("sleep 1; echo done > alpha.txt"), "TASK_COMPLETE"),
    worlds=lambda task: make_world(task, Site(box, here)),
    settings=EpisodeSettings(max_turns=4, max_new_tokens=64, episode_seconds={COMMAND_SECONDS}),
    clock=time.monotonic,
)
(t,) = asyncio.run(fly([Attempt(write_task("alpha"), 0)], one, lambda a: lambda turn: turn))
print(json.dumps([t.stop_reason, t.grade.passed, [turn.exit_code for turn in t.turns]]))
"""


def sleeps(pid: int) -> bool:
    """Whether a descendant of this process is a `sleep`."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # others come and go
            if "sleep" in child.name():
                return True
    return False


def test_a_command_whose_time_passed_while_all_stood_still_is_not_counted_as_too_slow(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-c", PLAY, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as rollout:
        while not sleeps(rollout.pid):
            assert rollout.poll() is None, "it ended before its command was seen"
            time.sleep(0.01)
        with standing_still([rollout.pid]):
            time.sleep(STANDSTILL_SECONDS)
        said, _ = rollout.communicate()
    assert json.loads(said) == ["TASK_COMPLETE", True, [0, None]]


# --- kills ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_kept_trainer_that_is_killed_in_its_step_costs_a_load_and_no_step(
    calm: Night, night: Night
) -> None:
    with night.running() as loop:
        night.until(loop, lambda: trainer_of(night) is not None)
        assert kill(night.folder.path, loop, Victim.TRAINER)
        assert loop.wait() == 0, night.said
    assert "ended in the middle of the step, which is taken anew" in night.said
    assert night.trained() == calm.trained()
    assert Ledger(night.folder.ledger).entries() == []


@pytest.mark.slow
def test_a_kept_trainer_that_hangs_in_its_step_is_ended_and_costs_no_step(
    calm: Night, night: Night
) -> None:
    """It is stopped, as one that waits for a driver, and hears no SIGTERM."""
    with night.running("--set", f"engine.start_seconds={HANG_SECONDS / 4}") as loop:
        night.until(loop, lambda: night.events("phase_start", "train"))
        night.until(loop, lambda: stop_trainer_of(night))
        assert loop.wait() == 0, night.said
    told = f"the trainer said nothing for {to_the_second(HANG_SECONDS)} and was ended"
    assert f"{told} in the middle of the step, which is taken anew" in night.said
    assert night.trained() == calm.trained()
    assert Ledger(night.folder.ledger).entries() == []


def stop_trainer_of(night: Night) -> bool:
    """SIGSTOP the trainer that takes a step; False where there is none."""
    if (pid := trainer_of(night)) is None:
        return False
    os.kill(pid, signal.SIGSTOP)
    return True


def trainer_of(night: Night) -> int | None:
    """The pid of a trainer that was asked for a step."""
    trainer = Ledger(night.folder.ledger).get(TRAINER)
    return trainer.pid if trainer is not None and not trainer.info.get("begun") else None


@pytest.mark.slow
def test_an_engine_that_hangs_in_the_rollout_is_replaced_once_and_nothing_is_lost(
    calm: Night, night: Night
) -> None:
    """It takes connections and answers nothing."""
    with night.running() as loop:
        night.until(loop, night.finished_episodes)
        engine = find_engine(night.folder.path)
        assert engine is not None
        os.kill(engine.pid or 0, signal.SIGSTOP)
        assert loop.wait() == 0, night.said
    assert "the rollout phase is done once more" in night.said
    assert night.events("phase_start", "rollout") == 2
    assert night.trained() == calm.trained()
    assert alive(night.folder.path) == []


@pytest.mark.slow
def test_a_trainer_that_is_killed_for_memory_says_what_makes_it_smaller_and_keeps_the_bundle(
    calm: Night, night: Night
) -> None:
    with night.running("--set", "engine.keep_trainer=false") as loop:
        night.until(loop, lambda: kill(night.folder.path, loop, Victim.TRAINER))
        assert loop.wait() == SHORTAGE
    assert "the trainer was killed (exit 137)" in night.said
    told = re.search(
        r"largest micro-batch had (\d+) .* trainer.tokens_per_microbatch = (\d+) \(it is (\d+)\)",
        night.said,
    )
    assert told is not None, night.said
    largest, smaller, present = map(int, told.groups())
    assert longest_episode(night) <= smaller < largest <= present
    assert "run the same command again" in night.said
    bundle = night.folder.bundle(1).read_bytes()
    assert night.run() == 0, night.said
    assert night.folder.bundle(1).read_bytes() == bundle
    assert night.trained() == calm.trained()


@pytest.mark.slow
def test_a_rank_of_the_trainer_that_is_killed_is_named_and_the_same_command_goes_on(
    night: Night,
) -> None:
    two = ("--set", "trainer.processes=2")
    with night.running(*two) as loop:
        night.until(loop, lambda: kill_rank(night, 1))
        assert loop.wait() == SHORTAGE
    assert re.search(r"step 1: the trainer's rank 1 of 2 \(pid \d+\) was killed", night.said)
    assert "trainer.processes = 1" in night.said
    assert "run the same command again" in night.said
    assert not [m for m in marked() if m.ledger == night.folder.ledger]
    assert not list(night.folder.step(1).glob("*.tmp-*"))
    bundle = night.folder.bundle(1).read_bytes()
    assert night.run(*two) == 0, night.said
    assert night.folder.bundle(1).read_bytes() == bundle
    trained = json.loads((night.folder.step(1) / "train.json").read_text())
    assert trained["train"]["processes"] == 2
    assert Ledger(night.folder.ledger).entries() == []


def kill_rank(night: Night, number: int) -> bool:
    """Kill that rank of the trainer that runs now; False where there is none."""
    trainer = Ledger(night.folder.ledger).get(TRAINER)
    for pid in family(trainer.marker) if trainer else ():
        if environment(pid).get("RANK") == str(number):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (
            Budget(largest=4000, longest=900, fits=1500),
            "4000 tokens, and about 1500 fit into the memory that is available now: set "
            "trainer.tokens_per_microbatch = 1500 (it is 4096)",
        ),
        (Budget(largest=4000, longest=900, fits=9000), "too low or did not know what else ran"),
        (Budget(largest=4000, longest=900, fits=9000), "tokens_per_microbatch = 2000 (it is 4096)"),
        (
            Budget(largest=4000, longest=900, fits=800),
            "No trainer.tokens_per_microbatch is small enough: the longest segment alone has 900 "
            "tokens, and about 800 fit",
        ),
        (Budget(largest=900, longest=900, fits=9000), "micro-batch was no larger than that"),
        (
            Budget(largest=900, longest=900, fits=9000, at_a_time=2),
            "set trainer.tokens_per_microbatch = 450 (it is 4096)",
        ),
        (
            Budget(largest=900, longest=900, fits=400, at_a_time=2),
            "the longest segment alone has 900 tokens, and about 800 fit",
        ),
    ],
)
def test_the_token_budget_after_a_kill_is_told_with_its_reason(budget: Budget, says: str) -> None:
    told = told_budget(budget, 4096, "set trainer.gradient_checkpointing = true")
    assert says in told
    assert told.endswith(" set trainer.gradient_checkpointing = true")


def longest_episode(night: Night) -> int:
    """Of those that the step trains on, in tokens."""
    trained = [g for g in read_bundle(night.folder.bundle(1)) if g.signal is Signal.LEARNABLE]
    last = [t.turns[-1] for g in trained for t in g.trajectories]
    return max(len(turn.prompt_ids) + len(turn.completion_ids) for turn in last) - 1


@pytest.mark.slow
def test_a_rollout_that_is_killed_halfway_uses_every_episode_that_it_had_finished(
    calm: Night, night: Night
) -> None:
    with night.running() as loop:
        night.until(loop, night.finished_episodes)
        kill(night.folder.path, loop, Victim.ALL)
    require_readable(night.folder.path)
    kept = night.finished_episodes()
    assert kept
    assert not night.folder.bundle(1).exists()
    assert night.run() == 0, night.said
    # What an episode took is in its record, to the microsecond: played again it would be another.
    assert [t for t in played(night) if t in kept] == sorted(kept, key=played(night).index)
    assert night.trained() == calm.trained()
    assert alive(night.folder.path) == []


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_that_a_night_writes_or_asks_the_model_holds_a_secret_of_the_person(
    calm: Night,
) -> None:
    assert "canary4711" not in calm.said
    for path in (p for p in calm.folder.path.rglob("*") if p.is_file()):
        assert b"canary4711" not in path.read_bytes(), path
    chat = ChatRenderer(Path(json.loads(calm.folder.manifest.read_text())["model"]["dir"]))
    for trajectory in played(calm):
        assert "canary4711" not in chat.decode(trajectory.turns[-1].prompt_ids)
