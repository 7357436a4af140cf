"""A step's seconds: the parts, the wall, and what belongs to neither."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.run.timings import (
    LOOP_VARIABLE,
    Segment,
    StepTimings,
    Stopwatch,
    eval_segment,
    process_began,
    read_timings,
    this_loop,
    write_timings,
)


def segment(phase: str, began: float, ended: float, loop: str = "77", **parts: float) -> Segment:
    return Segment(phase, loop, began, ended, parts)


def test_the_wall_of_one_loop_sees_the_time_between_phases() -> None:
    timings = StepTimings(1, (segment("rollout", 0, 10), segment("train", 12, 20)))
    assert timings.wall == 20


def test_the_time_between_phases_is_a_part_with_a_name() -> None:
    phases = (segment("rollout", 0, 10, rollout=10.0), segment("train", 12, 20, gradient=8.0))
    assert StepTimings(1, phases).seconds == {"between": 2, "rollout": 10, "gradient": 8}
    by_hand = tuple(replace(s, loop="") for s in phases)
    assert "between" not in StepTimings(1, by_hand).seconds


def test_a_night_between_two_loops_is_nobodys_time() -> None:
    timings = StepTimings(1, (segment("rollout", 0, 10, "1"), segment("train", 9000, 9008, "2")))
    assert timings.wall == 18


def test_phases_typed_by_hand_are_added_up() -> None:
    timings = StepTimings(1, (segment("rollout", 0, 10, ""), segment("train", 60, 68, "")))
    assert timings.wall == 18


def test_an_evaluation_is_no_part_of_what_a_step_costs() -> None:
    timings = StepTimings(
        25, (segment("rollout", 0, 10), segment("train", 10, 30), segment("eval sha", 30, 90))
    )
    assert timings.training_wall == 30
    assert timings.eval_wall == 60
    assert timings.eval_of("sha") == 60
    assert timings.eval_of("other") is None


def test_parts_of_all_phases_are_added_by_name() -> None:
    timings = StepTimings(
        1,
        (
            segment("rollout", 0, 10, startup=2.0, rollout=8.0),
            segment("train", 10, 20, startup=1.0, gradient=9.0),
        ),
    )
    assert timings.seconds == {"startup": 3.0, "rollout": 8.0, "gradient": 9.0}
    assert sum(timings.seconds.values()) == timings.wall


def test_a_phase_that_was_run_again_counts_once() -> None:
    first = StepTimings(1).with_segment(segment("rollout", 0, 10))
    assert first.with_segment(segment("rollout", 50, 55)).wall == 5


def test_timings_survive_disk(tmp_path: Path) -> None:
    path = tmp_path / "timings.json"
    assert read_timings(path, 3) == StepTimings(3)
    timings = StepTimings(3, (segment(eval_segment("sha"), 1.5, 2.5, rollout=0.5),))
    write_timings(path, timings)
    assert read_timings(path, 3) == timings


def test_timings_of_another_step_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "timings.json"
    write_timings(path, StepTimings(3))
    with pytest.raises(BadInput, match="step 4"):
        read_timings(path, 4)


def test_a_loop_of_another_start_of_a_container_is_another_loop_though_its_pid_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert this_loop() == "", "a phase that was typed"
    monkeypatch.setenv(LOOP_VARIABLE, f"{os.getpid()}")
    mine = this_loop()
    assert mine == this_loop()
    monkeypatch.setattr("scripts.run.timings.start_time", lambda pid: 1)
    assert this_loop() != mine


def test_a_process_knows_when_it_was_started() -> None:
    age = time.time() - process_began()
    assert 0 < age < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert os.times().user <= age + 1


def test_the_stopwatch_counts_a_part_that_failed_too() -> None:
    watch = Stopwatch(time.time() - 5)
    assert watch.seconds["startup"] == pytest.approx(5, abs=0.5)
    with pytest.raises(RuntimeError), watch.part("rollout"):
        raise RuntimeError
    watch.add("rollout", 3.0)
    assert watch.seconds["rollout"] >= 3.0


# --- a rollout beside the training of the step before ---------------------------------------------


def test_the_walls_of_steps_that_overlap_add_up_to_the_night() -> None:
    first = StepTimings(1, (segment("rollout", 0, 10), segment("train", 11, 31)))
    second = StepTimings(2, (segment("rollout", 11, 25), segment("train", 32, 52)))
    third = StepTimings(3, (segment("rollout", 33, 63), segment("train", 64, 84)))
    second = second.after(first)
    third = third.after(second)
    assert (first.wall, second.wall, third.wall) == (31, 21, 32)
    assert first.wall + second.wall + third.wall == 84


def test_an_evaluation_between_two_steps_that_overlap_is_in_one_wall_only() -> None:
    first = StepTimings(1, (segment("rollout", 0, 10), segment("train", 10, 30)))
    first = first.with_segment(segment("eval sha", 30, 90))
    second = StepTimings(2, (segment("rollout", 10, 25), segment("train", 91, 111))).after(first)
    assert first.wall + second.wall == 111
    assert second.training_wall == 21


def test_a_rollout_of_another_loop_is_beside_nothing() -> None:
    first = StepTimings(1, (segment("rollout", 0, 10), segment("train", 40, 60, "2")))
    second = StepTimings(2, (segment("rollout", 10, 25), segment("train", 61, 81, "2")))
    assert second.after(first).wall == 15 + 20


def test_parts_of_a_step_are_as_long_as_they_were_and_count_for_the_wall_what_came_after() -> None:
    first = StepTimings(1, (segment("rollout", 0, 10), segment("train", 10, 30)))
    phases = (segment("rollout", 10, 40, rollout=30.0), segment("train", 41, 51, gradient=10.0))
    second = StepTimings(2, phases).after(first)
    assert second.seconds == {"between": 1, "rollout": 30, "gradient": 10}
    assert second.seconds_of_wall == pytest.approx({"between": 1, "rollout": 10, "gradient": 10})
    assert sum(second.seconds_of_wall.values()) == pytest.approx(second.wall)


def test_an_overlap_is_read_as_it_was_written_and_a_step_without_one_has_no_key(
    tmp_path: Path,
) -> None:
    first = StepTimings(1, (segment("rollout", 0, 10), segment("train", 10, 30)))
    second = StepTimings(2, (segment("rollout", 10, 25), segment("train", 31, 51))).after(first)
    for timings in (first, second):
        write_timings(tmp_path / "timings.json", timings)
        assert read_timings(tmp_path / "timings.json", timings.step) == timings
        assert ('"since"' in (tmp_path / "timings.json").read_text()) == (timings is second)
