"""TensorBoard's file: what it says, that it can be made at any time, and that it ends no night."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fieldkit.codec import encode
from rollout.arm import SUMMARY, TRAJECTORIES
from scripts.base.events import Event
from scripts.phases import run_phase
from scripts.phases.context import Done
from scripts.phases.registry import PHASES
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.track import tensorboard
from scripts.track.points import read_points
from scripts.track.tensorboard import EVENTS, TensorBoard, event_bytes
from scripts.track.trackers import track
from tests.scripts.evals import step, write_eval
from tests.scripts.made_night import Night, after, make_night, tasks

STEPS = 4


def scalars(folder: RunFolder, tag: str) -> list[tuple[int, Any]]:
    """(step, value) of one tag, as TensorBoard itself reads them."""
    reader = EventAccumulator(str(folder.tensorboard))
    reader.Reload()
    return [(e.step, pytest.approx(e.value)) for e in reader.Scalars(tag)]


def write_tensorboard(folder: RunFolder) -> Path | None:
    """The event file of all that the run has come to."""
    return tensorboard.write_tensorboard(folder, read_points(folder))


def events(folder: RunFolder) -> Path:
    return folder.tensorboard / EVENTS


def take_back(night: Night, n: int) -> None:
    """Remove step `n` by hand."""
    night.folder.summary(n).unlink()


def test_every_step_has_its_figures(tmp_path: Path) -> None:
    folder = make_night(tmp_path, n_steps=4).folder
    write_tensorboard(folder)
    assert scalars(folder, "rollout/stop_rate") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert scalars(folder, "train/kl") == [(1, 0.001), (2, 0.002), (3, 0.003), (4, 0.004)]
    assert scalars(folder, "groups/learnable") == [(n, 6.0) for n in range(1, 5)]
    assert scalars(folder, "groups/stuck") == [(n, 0.0) for n in range(1, 5)]
    assert scalars(folder, "seconds/rollout") == [(n, 40.0) for n in range(1, 5)]
    assert scalars(folder, "rollout/tokens_a_turn")[0] == (1, 20.0)
    assert scalars(folder, "rollout/tokens_per_second")[0] == (1, 32 * 20 * 9.75 / 40)


def test_an_evaluation_stands_at_the_step_of_its_adapter(tmp_path: Path) -> None:
    folder = make_night(tmp_path, n_steps=4).folder
    write_tensorboard(folder)
    assert scalars(folder, "heldout/turns") == [(0, 12.0), (4, 3.0)]
    assert scalars(folder, "heldout/pass_rate") == [(0, 10 / 24), (4, 12 / 24)]
    assert scalars(folder, "heldout/stop_rate") == [(0, 0.0), (4, 1.0)]


def test_a_step_without_signal_does_not_move_an_evaluation(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=4)
    night.folder.step(5).mkdir()
    night.folder.summary(5).write_text(encode(step(5, "sha-4", stop_rate=1.0, turns=3.0)))
    write_tensorboard(night.folder)
    assert scalars(night.folder, "heldout/turns") == [(0, 12.0), (4, 3.0)]


def test_a_figure_that_a_step_lacks_is_left_out(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=2)
    night.folder.summary(2).write_text(encode(step(2, "sha-2", stop_rate=1.0, turns=3.0)))
    write_tensorboard(night.folder)
    assert [n for n, _ in scalars(night.folder, "train/kl")] == [1]
    assert [n for n, _ in scalars(night.folder, "rollout/turns")] == [1, 2]


def test_a_run_without_a_step_leaves_no_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert write_tensorboard(folder) is None
    assert not folder.tensorboard.exists()


def test_writing_twice_says_nothing_twice(tmp_path: Path) -> None:
    folder = make_night(tmp_path, n_steps=3).folder
    write_tensorboard(folder)
    before = events(folder).read_bytes()
    write_tensorboard(folder)
    assert events(folder).read_bytes() == before == event_bytes(read_points(folder))


def test_a_further_step_is_appended_so_that_an_open_tensorboard_follows(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=3, evaluated=False)
    last = night.folder.summary(3).read_text()
    take_back(night, 3)
    write_tensorboard(night.folder)
    inode, before = events(night.folder).stat().st_ino, events(night.folder).read_bytes()
    night.folder.summary(3).write_text(last)
    write_tensorboard(night.folder)
    assert events(night.folder).stat().st_ino == inode
    assert events(night.folder).read_bytes().startswith(before)
    assert [n for n, _ in scalars(night.folder, "rollout/reward")] == [1, 2, 3]


@pytest.mark.parametrize("kept", [0, 1, 700, -1])
def test_a_tail_that_a_crash_tore_off_is_completed(tmp_path: Path, kept: int) -> None:
    folder = make_night(tmp_path, n_steps=3).folder
    write_tensorboard(folder)
    whole = events(folder).read_bytes()
    events(folder).write_bytes(whole[:kept])
    write_tensorboard(folder)
    assert events(folder).read_bytes() == whole


def test_a_step_that_was_played_again_replaces_what_it_had_said(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=3, evaluated=False)
    write_tensorboard(night.folder)
    other = step(3, "sha-x", stop_rate=0.5, turns=6.0, reward=0.25)
    night.folder.summary(3).write_text(encode(other))
    write_tensorboard(night.folder)
    assert scalars(night.folder, "rollout/reward")[2:] == [(3, 0.25)]


def test_a_summary_that_cannot_be_read_is_told_and_ends_nothing(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=3)
    night.folder.summary(2).write_text('{"schema": 1, "step": 2}')
    told: list[Event] = []
    track(night.folder, RunConfig(), told.append)
    (line,) = told
    assert line.text.startswith(f"TensorBoard: {night.folder.summary(2)}:1: ")
    assert line.text.endswith(f"`grpo track {night.folder.typed}` makes up for it")


def test_a_disk_that_takes_no_file_is_told_and_ends_nothing(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=3)
    night.folder.tensorboard.write_text("a file where the folder should be")
    told: list[Event] = []
    track(night.folder, RunConfig(), told.append)
    assert [e.text.partition(":")[0] for e in told] == ["TensorBoard"]


def test_weights_and_biases_is_left_alone_unless_it_is_asked_for(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=3)
    told: list[Event] = []
    track(night.folder, RunConfig(), told.append)
    assert not told
    assert not (night.folder.path / "wandb.json").exists()


def test_tensorboard_does_not_bring_torch_along(tmp_path: Path) -> None:
    folder = make_night(tmp_path, n_steps=1).folder
    code = (
        "import sys; from pathlib import Path\n"
        "from scripts.run.folder import RunFolder\n"
        "from scripts.track.points import read_points\n"
        "from scripts.track.tensorboard import write_tensorboard\n"
        f"folder = RunFolder(Path({str(folder.path)!r}))\n"
        "assert write_tensorboard(folder, read_points(folder))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


@pytest.mark.parametrize(
    ("phase", "tracked"), [("train", True), ("eval", True), ("rollout", False)]
)
def test_the_phases_that_make_figures_end_with_them_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, tracked: bool
) -> None:
    entry = replace(PHASES[phase], work=lambda ctx: Done("worked"))
    monkeypatch.setattr(run_phase, "PHASES", {phase: entry})
    monkeypatch.setattr(
        run_phase, "put_aside_changes", lambda folder, tell: None
    )  # it has no weights
    folder = make_night(tmp_path, n_steps=1).folder
    run_phase.run_phase(phase, str(folder.path), lambda event: None)
    assert events(folder).exists() == tracked


def test_an_arm_of_other_tasks_is_no_point(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=2)
    path = night.eval_of("sha-2") / SUMMARY
    path.write_text(json.dumps({**json.loads(path.read_text()), "tasks_sha": "other"}))
    assert (path.parent / TRAJECTORIES).is_file()
    write_tensorboard(night.folder)
    assert [n for n, _ in scalars(night.folder, "heldout/turns")] == [0]


def shrunk(night: Night, steps: int, later: Path) -> None:
    """Move the steps after the first ones aside."""
    for n in range(steps + 1, STEPS + 1):
        night.folder.step(n).rename(later / f"{n}")


def test_new_points_are_appended_without_reading_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night, later = make_night(tmp_path, n_steps=STEPS), tmp_path / "later"
    later.mkdir()
    arm = night.eval_of(f"sha-{STEPS}")
    arm.rename(later / arm.name)
    shrunk(night, 1, later)
    tracker = TensorBoard()
    assert not tracker.bring_newest(night.folder), "nothing was written yet"
    write_tensorboard(night.folder)
    for n in range(2, STEPS + 1):
        (later / f"{n}").rename(night.folder.step(n))
        if n == STEPS:
            (later / arm.name).rename(arm)
        monkeypatch.setattr(tensorboard, "event_bytes", None)
        assert tracker.bring_newest(night.folder)
        assert tracker.bring_newest(night.folder), "twice changes nothing"
        monkeypatch.undo()
        assert events(night.folder).read_bytes() == event_bytes(read_points(night.folder))


def evaluate_an_older_step(night: Night) -> None:
    on = tasks(24)
    write_eval(night.folder.evals, after(on, "sha-1", 2), on, arm="step 1")


def tear(night: Night) -> None:
    with open(events(night.folder), "r+b") as f:
        f.truncate(100)


def play_the_last_step_again(night: Night) -> None:
    file = night.folder.summary(STEPS)
    os.utime(file, (1, 1))


def forget(night: Night) -> None:
    (night.folder.tensorboard / tensorboard.WRITTEN).unlink()


@pytest.mark.parametrize("change", [evaluate_an_older_step, tear, play_the_last_step_again, forget])
def test_where_more_than_the_newest_has_changed_the_file_is_made_anew(
    tmp_path: Path, change: Callable[[Night], None]
) -> None:
    night = make_night(tmp_path, n_steps=STEPS)
    write_tensorboard(night.folder)
    change(night)
    assert not TensorBoard().bring_newest(night.folder)
    write_tensorboard(night.folder)
    assert events(night.folder).read_bytes() == event_bytes(read_points(night.folder))
    assert TensorBoard().bring_newest(night.folder)
