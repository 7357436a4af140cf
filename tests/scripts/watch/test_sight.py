"""A run seen from outside: while it works, after it broke, and without leaving a trace in it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fieldkit.codec import encode_trajectory
from fieldkit.errors import Interrupted
from fieldkit.files.journal import Journal
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import terminate
from fieldkit.records import Trajectory
from rollout.arm import PARTIAL
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.run.timings import StepTimings, write_timings
from scripts.watch import sight
from scripts.watch.activity import State
from scripts.watch.frame import frame
from scripts.watch.listing import list_runs
from scripts.watch.sight import Watcher
from scripts.words.quantities import clock
from tests.scripts.evals import trajectory
from tests.scripts.made_night import HELD_OUT, Night, make_night, timings

STEPS = 4


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Four finished steps of six. A phase lives even if it began before this test process did."""
    monkeypatch.setattr(sight, "lives", lambda entry, loop: True)
    made = make_night(tmp_path, n_steps=STEPS, evaluated=False)
    made.folder.config.write_text("[run]\nsteps = 6\n[rollout]\ntasks_per_step = 2\n")
    return made


def begin(folder: RunFolder, phase: str, ago: float = 0.0) -> None:
    """This very process begins a phase, `ago` seconds from now."""
    head = {"schema": 1, "time": time.time() - ago, "pid": os.getpid(), "event": "phase_start"}
    with open(folder.journal, "a", encoding="utf-8") as f:
        f.write(json.dumps({**head, "phase": phase}) + "\n")


def leave_partial(path: Path, *finished: Trajectory) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(encode_trajectory(t) + "\n" for t in finished), encoding="utf-8")


def finished(task_id: str, sha: str = "sha-4") -> Trajectory:
    return trajectory(task_id, sha, 4, 3, True)


def test_a_rollout_is_as_far_as_its_finished_episodes(night: Night) -> None:
    begin(night.folder, "rollout")
    leave_partial(night.folder.partial(STEPS + 1), finished("p000"), finished("p001"))
    sight = Watcher(night.folder).look()
    assert sight.activity.state is State.WORKING
    assert sight.step == STEPS + 1
    assert sight.planned == 6
    assert sight.progress is not None
    assert (sight.progress.done, sight.progress.total, sight.progress.unit) == (2, 8, "episodes")
    assert sight.episode is not None
    assert (sight.episode.trajectory.task_id, sight.episode.of) == ("p001", "step 5")


def test_a_rollout_that_replaces_groups_is_as_far_as_the_groups_that_it_has_begun(
    night: Night,
) -> None:
    begin(night.folder, "rollout")
    leave_partial(night.folder.partial(STEPS + 1), *(finished(f"p{i:03d}") for i in range(9)))
    progress = Watcher(night.folder).look().progress
    assert progress is not None
    assert (progress.done, progress.total) == (9, 12)


def test_a_step_that_is_trained_is_the_newest_until_another_begins(night: Night) -> None:
    begin(night.folder, "train")
    assert Watcher(night.folder).look().step == STEPS + 1
    Journal(night.folder.journal).append("phase_end", phase="train", exit=0)
    assert Watcher(night.folder).look().step == STEPS


def test_an_episode_that_is_being_written_does_not_count_yet(night: Night) -> None:
    begin(night.folder, "rollout")
    path = night.folder.partial(STEPS + 1)
    leave_partial(path, finished("p000"))
    with open(path, "a", encoding="utf-8") as f:
        f.write('{"schema":1,"task_id":"p0')
    sight = Watcher(night.folder).look()
    assert sight.progress is not None
    assert sight.progress.done == 1
    assert not sight.troubles


def test_an_evaluation_is_as_far_as_its_finished_tasks(night: Night) -> None:
    begin(night.folder, "eval")
    leave_partial(night.folder.evals / "abc" / PARTIAL, finished("t000", "sha-4"))
    sight = Watcher(night.folder).look()
    assert sight.step == STEPS
    assert sight.progress is not None
    assert (sight.progress.done, sight.progress.total) == (1, HELD_OUT)
    assert sight.episode is not None
    assert sight.episode.of == "step 4, held-out set"


@pytest.mark.parametrize("phase", ["rollout", "train"])
def test_an_evaluation_that_was_given_up_is_not_shown_for_the_rest_of_the_night(
    night: Night, phase: str
) -> None:
    leave_partial(night.folder.evals / "abc" / PARTIAL, finished("t000", "sha-4"))
    begin(night.folder, phase)
    seen = Watcher(night.folder).look()
    assert seen.episode is not None
    assert seen.episode.of == "step 4"
    leave_partial(night.folder.partial(STEPS + 1), finished("p000"))
    seen = Watcher(night.folder).look()
    assert seen.episode is not None
    assert seen.episode.of == "step 5"


def test_a_night_that_failed_has_stopped_though_its_sweep_lives_on(night: Night) -> None:
    """The sweep's own process held the lock, and goes on with its next night."""
    journal, folder = Journal(night.folder.journal), night.folder
    with run_lock(folder.lock):
        begin(folder, "train")
        journal.append("phase_end", phase="train", exit=5, error="too little memory")
        assert Watcher(folder).look().activity.state is State.BETWEEN
        journal.append("loop_end", exit=5, error="too little memory")
    seen = Watcher(folder).look().activity
    assert (seen.state, seen.why) == (State.STOPPED, "exit 5: too little memory")


def test_a_night_that_waits_for_memory_says_until_when_in_watch_and_list(night: Night) -> None:
    journal, folder = Journal(night.folder.journal), night.folder
    error = {"exit": 5, "error": "too little memory"}
    with run_lock(folder.lock):
        begin(folder, "train")
        journal.append("phase_end", phase="train", **error)
        journal.append("pause", phase="train", seconds=600.0, **error)
        seen = Watcher(folder).look()
        screen = Console(width=100, file=(out := io.StringIO()))
        screen.print(frame(seen, screen))
        shown = " ".join(out.getvalue().replace("│", " ").split())
        (listed,) = list_runs(folder.path.parent)
    until = clock(seen.activity.until)
    assert f"the train phase is done once more at {until}; it ended with exit 5: too" in shown
    assert "waiting" in shown
    assert listed.state == f"waiting until {until} to do the train phase again"


def test_an_arm_at_the_training_temperature_is_as_far_as_its_finished_tasks(night: Night) -> None:
    begin(night.folder, "eval")
    night.folder.config.write_text("[eval]\ntasks_at_training_temperature = 3\n")
    leave_partial(night.folder.training_evals / "abc" / PARTIAL, finished("t000"))
    sight = Watcher(night.folder).look()
    assert sight.progress is not None
    assert (sight.progress.done, sight.progress.total) == (1, 3)


def test_training_is_measured_by_what_it_took_the_last_time(night: Night) -> None:
    begin(night.folder, "train", ago=20)
    sight = Watcher(night.folder).look()
    assert sight.progress is not None
    assert sight.progress.done == pytest.approx(20, abs=2)
    assert sight.progress.total == 35


def test_while_it_trains_the_last_rollout_of_the_bundle_is_shown(night: Night) -> None:
    begin(night.folder, "train")
    night.folder.step(STEPS + 1).mkdir()
    shutil.copy(night.folder.bundle(STEPS), night.folder.bundle(STEPS + 1))
    sight = Watcher(night.folder).look()
    assert sight.episode is not None
    assert sight.episode.of == "step 5"


def test_the_time_left_runs_down_while_a_step_is_under_way(night: Night) -> None:
    """Two steps of 80 s are to come, and the held-out set once more."""
    idle = Watcher(night.folder).look().left
    begin(night.folder, "rollout", ago=30)
    under_way = Watcher(night.folder).look().left
    assert idle is not None
    assert under_way is not None
    assert idle >= 160
    assert idle - under_way == pytest.approx(30, abs=2)


def test_in_training_the_rollout_before_it_counts_as_gone(night: Night) -> None:
    idle = Watcher(night.folder).look().left
    begin(night.folder, "train", ago=10)
    rollout = replace(timings(1).segments[0], began=time.time() - 50, ended=time.time() - 10)
    night.folder.step(STEPS + 1).mkdir()
    write_timings(night.folder.timings(STEPS + 1), StepTimings(STEPS + 1, (rollout,)))
    left = Watcher(night.folder).look().left
    assert idle is not None
    assert left is not None
    assert idle - left == pytest.approx(50, abs=2)


def test_a_step_that_takes_too_long_takes_no_time_from_the_others(night: Night) -> None:
    begin(night.folder, "rollout", ago=5000)
    left = Watcher(night.folder).look().left
    assert left is not None
    assert left >= 80


def test_the_loop_that_works_knows_better_than_run_toml_how_far_it_goes(night: Night) -> None:
    with run_lock(night.folder.lock):
        Journal(night.folder.journal).append("loop_start", limits={"steps": 9}, changed={})
        assert Watcher(night.folder).look().planned == 9
        journal = night.folder.journal.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1')
        night.folder.journal.write_text(journal)
        seen = Watcher(night.folder).look()
        assert seen.planned == 6, "another loop's limits are no longer asked"


def until(folder: RunFolder, deadline: float) -> None:
    """This very process is a loop that has to be over at the Unix time `deadline`."""
    limits = {"steps": "auto", "until": deadline}
    Journal(folder.journal).append("loop_start", limits=limits, changed={})


def test_a_watch_that_begins_late_in_a_step_sees_the_deadline_as_the_loop_did(night: Night) -> None:
    """A step takes 80 s. When this one began there was time for it and one more, not so now."""
    with run_lock(night.folder.lock):
        until(night.folder, time.time() + 130)
        begin(night.folder, "rollout", ago=70)
        sight = Watcher(night.folder).look()
    assert (sight.step, sight.planned) == (STEPS + 1, STEPS + 2)
    assert sight.left == pytest.approx(2 * 80 - 70, abs=2)


def unmeasured(night: Night, **limits: object) -> None:
    """Of the night only the start is finished."""
    for n in range(1, STEPS + 1):
        shutil.rmtree(night.folder.step(n), ignore_errors=True)
    told = "".join(f"{key} = {json.dumps(value)}\n" for key, value in limits.items())
    night.folder.config.write_text(f"[run]\n{told}")


def test_how_many_steps_fit_is_not_told_before_one_was_measured(night: Night) -> None:
    unmeasured(night, steps="auto", minutes=45)
    begin(night.folder, "rollout")
    seen = Watcher(night.folder).look()
    assert seen.planned is None
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(frame(seen, console))
    assert "─ night · step 1 · rollout ─" in console.export_text()
    unmeasured(night, steps=20)
    assert Watcher(night.folder).look().planned == 20


def test_before_a_step_was_measured_no_second_that_is_gone_is_counted_twice(night: Night) -> None:
    """The arm before this one ended 10 s ago; both are played by one evaluation."""
    unmeasured(night, steps="auto", minutes=45)
    begin(night.folder, "eval", ago=60)
    played = replace(timings(0).segments[0], began=time.time() - 50, ended=time.time() - 10)
    write_timings(night.folder.timings(0), StepTimings(0, (played,)))
    assert Watcher(night.folder).look().left == pytest.approx(45 * 60 - 40 - 10, abs=2)
    with run_lock(night.folder.lock):
        night.folder.journal.unlink()
        until(night.folder, time.time() + 600)
        begin(night.folder, "eval", ago=60)
        assert Watcher(night.folder).look().left == pytest.approx(600, abs=2)


def test_the_base_arm_that_comes_last_is_part_of_the_time_left(night: Night) -> None:
    without = Watcher(night.folder).look().left
    shutil.rmtree(night.eval_of("base"))
    text = night.folder.config.read_text()
    night.folder.config.write_text(text + '[eval]\nbase = "end"\n')
    left = Watcher(night.folder).look().left
    assert without is not None
    assert left is not None
    assert left > without


def test_the_last_thing_that_the_loop_said_is_no_row_of_a_table(night: Night) -> None:
    night.folder.log.mkdir()
    log = night.folder.log / "loop-20261121-181011.log"
    log.write_text("18:10:17   engine: starting\n\n  tasks passed    0/158\n\n")
    assert Watcher(night.folder).look().said == "18:10:17   engine: starting"


def test_a_fresh_folder_can_be_watched(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.path.mkdir()
    folder.config.write_text("")
    sight = Watcher(folder).look()
    assert sight.activity.state is State.FRESH
    assert not sight.troubles


def test_a_step_that_is_being_finished_appears_at_the_next_look(night: Night) -> None:
    text = night.folder.summary(STEPS).read_text()
    night.folder.summary(STEPS).unlink()
    watcher = Watcher(night.folder)
    assert len(watcher.look().steps) == STEPS
    night.folder.summary(STEPS).write_text(text)
    assert len(watcher.look().steps) == STEPS + 1


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(night: Night) -> None:
    begin(night.folder, "rollout")
    night.folder.summary(2).write_text("{")
    leave_partial(night.folder.partial(STEPS + 1), finished("p000"))
    sight = Watcher(night.folder).look()
    assert any(str(night.folder.summary(2)) in line for line in sight.troubles)
    assert sight.activity.state is State.WORKING


def test_run_toml_half_edited_is_told_and_its_last_good_form_is_kept(night: Night) -> None:
    begin(night.folder, "rollout")
    watcher = Watcher(night.folder)
    watcher.look()
    night.folder.config.write_text("[run]\nstep")
    sight = watcher.look()
    assert str(night.folder.config) in sight.troubles[0]
    assert sight.planned == 6
    assert sight.progress is not None
    assert sight.progress.total == 8


def test_a_run_on_another_host_is_shown_without_its_processes(night: Night) -> None:
    manifest = json.loads(night.folder.manifest.read_text())
    night.folder.manifest.write_text(json.dumps({**manifest, "host": {"name": "spark"}}))
    head = {"schema": 1, "time": time.time(), "pid": 2**22 + 1, "event": "phase_start"}
    night.folder.journal.write_text(json.dumps({**head, "phase": "rollout"}) + "\n")
    sight = Watcher(night.folder).look()
    assert sight.host == "spark"
    assert sight.activity.state is State.WORKING, "its pids mean nothing here"
    assert sight.programs == ()


def test_a_look_takes_no_lock_and_leaves_the_folder_as_it_was(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(night.folder, "rollout")
    leave_partial(night.folder.partial(STEPS + 1), finished("p000"))
    with run_lock(night.folder.lock):
        pass
    before = _everything_in(night.folder.path)

    def refuse(*words: object) -> None:
        raise AssertionError("a lock was taken")

    monkeypatch.setattr(fcntl, "flock", refuse)
    sight = Watcher(night.folder).look()
    assert not sight.troubles
    assert _everything_in(night.folder.path) == before


def _everything_in(path: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(path.rglob("*"))}


def test_what_has_not_changed_is_not_read_again(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher(night.folder)
    before = watcher.look()

    def refuse(*words: object) -> None:
        raise AssertionError("it was read again")

    for name in ("read_step", "last_group", "read_eval", "read_manifest", "read_config"):
        monkeypatch.setattr(sight, name, refuse)
    monkeypatch.setattr(sight, "read_measured", refuse)
    after = watcher.look()
    assert (after.steps, after.evals, after.left) == (before.steps, before.evals, before.left)


def test_ctrl_c_is_not_taken_for_a_file_that_cannot_be_read(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr(sight, "read_config", interrupted)
    with pytest.raises(Interrupted):
        Watcher(night.folder).look()


@pytest.fixture
def engine(night: Night) -> Iterator[int]:
    """A process of the run, started as the engine is, with a child; ended afterwards."""
    ledger = Ledger(night.folder.ledger)
    code = "import subprocess; a = bytearray(64 << 20); subprocess.run(['sleep', '60'])"
    owned = ledger.launch(
        "engine",
        [sys.executable, "-c", code],
        env=os.environ,
        cwd=night.folder.path,
        log=night.folder.path / "engine.log",
        info={},
    )
    assert owned.pid is not None
    yield owned.pid
    terminate(owned, grace_seconds=5)


def test_the_processes_of_the_run_are_shown_and_no_others(night: Night, engine: int) -> None:
    begin(night.folder, "rollout")
    watcher = Watcher(night.folder)
    with run_lock(night.folder.lock):
        watcher.look()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.1)
            phase, found = watcher.look().programs
            if len(found.pids) == 2:
                break
    assert (phase.name, phase.pids) == ("rollout", (os.getpid(),))
    assert (found.name, found.pids[0], len(found.pids)) == ("engine", engine, 2)
    assert found.held >= 64 << 20
    assert found.cpu is not None
    os.kill(engine, signal.SIGKILL)
