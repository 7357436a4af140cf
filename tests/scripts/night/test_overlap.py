"""A night that plays the next step while it trains one: what it plays depends on nothing else.

The same short night on the two-layer model and the scripted engine is played with two phases at a
time, with one at a time (by grpo_loop.sh), and through kills. Bundles, adapters and optimizer
states are those of the first, but for the seconds in the records.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import read_bundle
from fieldkit.errors import BadInput
from fieldkit.files.journal import Journal
from fieldkit.process.ledger import Ledger
from fieldkit.records import RolloutGroup, StepSummary
from reward.solve_rate import DrawSums
from rollout.engine.serve import stop_engine
from rollout.seeds import EPISODE_TURN, training_seed
from scripts.base.checkout import ROOT
from scripts.base.signals import Wish
from scripts.phases.checks import require_staying_engine
from scripts.phases.context import Context
from scripts.run.assignments import assign
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.next_phase import sampled_from
from scripts.run.reader import RunReader
from scripts.run.timings import Stopwatch
from scripts.run.verify import put_aside_changes
from tests.chaos.night import Saboteur, alive, require_readable, survive, trained_twice
from tests.scripts.night.running import Night, as_from_a_terminal
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(1200)

STEPS = 3
INTERRUPTED = 130
DRAWS = {"draw": "frontier", "resample": 1, "concurrency": 2}
"""The rule that depends on what earlier steps drew, and spare tasks, so that its length varies."""


def make(folder: Path, policy: tuple[Path, Path]) -> Path:
    return write_run(
        folder,
        *policy,
        run={"steps": STEPS, "overlap": 1},
        rollout=DRAWS,
        eval={"base": "never", "tasks_at_training_temperature": 0},
        engine={"lifecycle": "hotswap"},
    )


@pytest.fixture(scope="module")
def evening(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night that has played what it starts from, and no step yet."""
    folder = make(tmp_path_factory.mktemp("evening") / "night", policy)
    night = Night(folder)
    assert night.run("--steps", "0") == 0, night.said
    return folder


@pytest.fixture(scope="module")
def calm(evening: Path, tmp_path_factory: pytest.TempPathFactory) -> Night:
    """The night to which nothing happens."""
    night = Night(shutil.copytree(evening, tmp_path_factory.mktemp("calm") / "night"))
    assert night.run() == 0, night.said
    return night


@pytest.fixture
def night(evening: Path, tmp_path: Path) -> Iterator[Night]:
    """The same night from its evening on. It leaves no engine behind."""
    night = Night(shutil.copytree(evening, tmp_path / "night"))
    yield night
    stop_engine(night.folder.path)


def summary(folder: RunFolder, n: int) -> StepSummary:
    return RunReader(folder).step(n)


def bundle(folder: RunFolder, n: int) -> list[Any]:
    """Everything in a step's bundle but the seconds that it took."""
    return [_group(g) for g in read_bundle(folder.bundle(n))]


def _group(g: RolloutGroup) -> Any:
    attempts = [
        (
            (t.task_id, t.k, t.seed, t.adapter_sha, t.stop_reason, t.reward, t.grade),
            [
                (u.prompt_ids, u.completion_ids, u.logprobs, u.policy_version, u.seed, u.reward)
                for u in t.turns
            ],
        )
        for t in g.trajectories
    ]
    return (g.step, g.task_id, g.signal, g.advantages, g.turn_advantages, g.left_out, attempts)


def require_the_same(night: RunFolder, calm: RunFolder) -> None:
    """To the byte, where seconds are no part of it."""
    assert night.finished_steps() == calm.finished_steps() == STEPS + 1
    for n in range(1, STEPS + 1):
        assert bundle(night, n) == bundle(calm, n)
        ours, theirs = summary(night, n), summary(calm, n)
        assert ours.adapter_sha == theirs.adapter_sha
        assert ours.optimizer_sha == theirs.optimizer_sha
    require_readable(night.path)
    assert trained_twice(night.path) == []
    assert alive(night.path) == []


# --- what is played -------------------------------------------------------------------------------


def test_each_step_is_played_by_the_adapter_of_one_step_earlier_and_says_so(calm: Night) -> None:
    shas = [summary(calm.folder, n).adapter_sha for n in range(STEPS + 1)]
    assert len({*shas}) == STEPS + 1, "a step that changed nothing would prove nothing here"
    for n in range(1, STEPS + 1):
        sampler = max(0, n - 2)
        played = [t for g in read_bundle(calm.folder.bundle(n)) for t in g.trajectories]
        assert {t.adapter_sha for t in played} == {shas[sampler]}
        versions = {turn.policy_version for t in played for turn in t.turns}
        assert versions == {calm.folder.version(sampler)}
        seeds = [training_seed(0, n, t.task_id, t.k, EPISODE_TURN) for t in played]
        assert [t.seed for t in played] == seeds
        assert summary(calm.folder, n).parent_sha == shas[n - 1]
        assert summary(calm.folder, n).train.get("policy_age") == (1.0 if n > 1 else None)
        trained = json.loads((calm.folder.step(n) / "train.json").read_text())
        assert trained.get("sampler_sha") == (shas[sampler] if n > 1 else None)


def test_a_rollout_runs_beside_a_training_and_walls_add_up_to_the_night(calm: Night) -> None:
    timings = [RunReader(calm.folder).timing(n) for n in range(1, STEPS + 1)]
    for before, after in itertools.pairwise(timings):
        trained, played = before.segments[1], after.segments[0]
        assert (trained.phase, played.phase) == ("train", "rollout")
        assert played.began < trained.ended
        assert after.since == trained.ended
    whole = timings[-1].segments[1].ended - timings[0].segments[0].began
    assert sum(t.training_wall for t in timings) == pytest.approx(whole, abs=0.5)
    assert "train, rollout beside it" in calm.said


def test_the_page_says_how_old_the_policy_was(calm: Night) -> None:
    steps = json.loads((calm.folder.path / "steps.json").read_text())["steps"]
    assert [s["train/policy_age"] for s in steps] == [None, 1.0, 1.0]
    assert "policy age" in (calm.folder.path / "report.html").read_text()


def test_a_draw_knows_the_step_before_it_whether_that_one_is_trained_or_not(
    calm: Night, tmp_path: Path
) -> None:
    known: list[DrawSums] = []
    for trained in (True, False):
        folder = RunFolder(shutil.copytree(calm.folder.path, tmp_path / str(trained)))
        folder.sums.unlink(missing_ok=True)
        for n in (2, 3)[trained:]:
            folder.summary(n).unlink()
        assert folder.finished_steps() == (3 if trained else 2)
        known.append(RunReader(folder).draws_before(3))
    assert known[0] == known[1]
    assert known[0].step == 2


# --- kills and wishes -----------------------------------------------------------------------------


def pair(night: Night) -> dict[str, int]:
    """The pids of the two phases where both have begun; empty where they have not."""
    entries = Ledger(night.folder.ledger).entries()
    found = {e.name: e.pid for e in entries if e.pid and e.name in ("train", "rollout")}
    journal = Journal(night.folder.journal).read()
    begun = {e.pid for e in journal if e.event == "phase_start"}
    return found if len(found) == 2 and begun.issuperset(found.values()) else {}


@pytest.mark.slow
def test_one_phase_after_the_other_makes_the_same_night(calm: Night, night: Night) -> None:
    loop = [str(ROOT / "scripts" / "grpo_loop.sh"), str(night.folder.path)]
    done = subprocess.run(loop, env=night.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    require_the_same(night.folder, calm.folder)
    assert not any(RunReader(night.folder).timing(n).since for n in range(1, STEPS + 1))


@pytest.mark.slow
def test_a_night_that_is_killed_often_is_the_same_night(calm: Night, night: Night) -> None:
    toll = survive(night.folder.path, Saboteur(10, seed=1, longest=4.0))
    assert toll.kills >= 5
    require_the_same(night.folder, calm.folder)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "other"), [("rollout", "train"), ("train", "rollout")])
def test_where_one_of_two_phases_is_killed_the_other_comes_to_its_end_and_it_is_done_once_more(
    calm: Night, night: Night, victim: str, other: str
) -> None:
    with night.running() as loop:
        night.until(loop, lambda: pair(night))
        os.kill(pair(night)[victim], signal.SIGKILL)
        assert loop.wait() == 0, night.said
    assert f"the {victim} phase failed; the {other} phase beside it comes to its end" in night.said
    assert f"the {victim} phase is done once more" in night.said
    assert night.events("phase_start", victim) == STEPS + 1
    assert night.events("phase_start", other) == STEPS
    require_the_same(night.folder, calm.folder)


@pytest.mark.slow
def test_asked_to_finish_the_step_is_trained_and_what_plays_beside_it_goes_on_later(
    calm: Night, night: Night
) -> None:
    with as_from_a_terminal(), night.running() as loop:
        night.until(loop, lambda: pair(night))
        loop.send_signal(signal.SIGINT)
        assert loop.wait() == INTERRUPTED, night.said
    assert night.folder.finished_steps() == 2
    assert alive(night.folder.path) == []
    assert night.run() == 0, night.said
    require_the_same(night.folder, calm.folder)


# --- changed files and bad input ------------------------------------------------------------------


def edited(calm: Night, folder: Path, edit: Callable[[RunFolder], None]) -> str:
    """What is said of a copy of the night that was changed, when a phase begins on it."""
    copy = RunFolder(shutil.copytree(calm.folder.path, folder))
    copy.summary(STEPS).unlink()
    (copy.step(STEPS) / "train.json").unlink()
    edit(copy)
    said: list[str] = []
    put_aside_changes(copy, lambda event: said.append(event.text))
    return "\n".join(said)


def test_a_bundle_that_an_older_adapter_sampled_is_in_order(calm: Night, tmp_path: Path) -> None:
    assert edited(calm, tmp_path / "night", lambda copy: None) == ""


def test_a_bundle_played_ahead_that_was_changed_is_put_aside(calm: Night, tmp_path: Path) -> None:
    def edit(copy: RunFolder) -> None:
        copy.summary(STEPS - 1).unlink()
        (copy.step(STEPS - 1) / "train.json").unlink()
        lines = copy.bundle(STEPS).read_text().splitlines()
        copy.bundle(STEPS).write_text(lines[0] + "\n")

    assert f"step-00{STEPS}/trajectory_bundle.jsonl is not as it was written" in edited(
        calm, tmp_path / "night", edit
    )


def test_a_bundle_that_the_newest_adapter_sampled_is_put_aside(calm: Night, tmp_path: Path) -> None:
    def edit(copy: RunFolder) -> None:
        newest = summary(copy, STEPS - 1).adapter_sha
        sampler = summary(copy, sampled_from(STEPS, 1)).adapter_sha
        copy.bundle(STEPS).write_text(copy.bundle(STEPS).read_text().replace(sampler, newest))
        copy.journal.unlink()  # which has the hash of the bundle that was sampled

    assert f"not sampled by the adapter of step {STEPS - 2}" in edited(
        calm, tmp_path / "night", edit
    )


def test_an_overlap_cannot_change_after_the_first_step(calm: Night) -> None:
    with pytest.raises(BadInput, match=r"run\.overlap was 1 when the run started and is now 0"):
        assign(calm.folder, ["run.overlap=0"])


def engine_stays(tmp_path: Path, policy: tuple[Path, Path], **engine: object) -> None:
    folder = RunFolder(write_run(tmp_path / "night", *policy, run={"overlap": 1}, engine=engine))
    config, watch = read_config(folder.config), Stopwatch(time.time())
    require_staying_engine(Context(folder, config, lambda event: None, Wish(), watch))


@pytest.mark.parametrize("lifecycle", ["auto", "restart", "sleep"])
def test_an_engine_that_may_end_while_the_trainer_works_is_refused_with_what_to_type(
    tmp_path: Path, policy: tuple[Path, Path], lifecycle: str
) -> None:
    with pytest.raises(BadInput) as refused:
        engine_stays(tmp_path, policy, lifecycle=lifecycle)
    said = str(refused.value)
    assert "run.overlap is 1, so the engine plays while the trainer works" in said
    assert f'engine.lifecycle = "{lifecycle}" may end it' in said
    _, run, _, setting = said.partition("`grpo ")[2].partition("`")[0].split()
    assert run == str(tmp_path / "night")
    assign(RunFolder(Path(run)), [setting])
    config = read_config(RunFolder(Path(run)).config)
    assert config.engine.lifecycle == "hotswap"


def test_an_engine_that_stays_is_taken(tmp_path: Path, policy: tuple[Path, Path]) -> None:
    engine_stays(tmp_path / "one", policy, lifecycle="hotswap")
    engine_stays(tmp_path / "two", policy, replicas=0, urls=["http://gpu-box:8000"])
