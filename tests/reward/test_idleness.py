"""What is had for nothing: counted where progress is known, and nowhere else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.eval.grade import RewardPart
from fieldkit.eval.stats import Estimate
from fieldkit.records import AtStop, StopReason, Trajectory
from reward.idleness import at_stop, by_need, progress
from tests.reward.build import trajectory
from tests.rollout.scripted import bash, player, replies, write_task


def attempt(*gains: float | None, done: bool = True, passed: int = 1, total: int = 3) -> Trajectory:
    """A turn with a command for each number, which is its progress; then perhaps "done"."""
    texts = [*("ls" for _ in gains), *(["TASK_COMPLETE"] if done else [])]
    t = trajectory(texts or ["ls"], passed, total, 0.0)
    turns = [replace(turn, reward=gain) for turn, gain in zip(t.turns, gains, strict=False)]
    return replace(t, turns=(*turns, *t.turns[len(turns) :]))


def test_a_stop_is_idle_where_no_more_holds_than_at_the_start() -> None:
    gave_up = attempt()
    looked = attempt(0.0, 0.0)
    made_and_removed = attempt(1 / 3, -1 / 3)
    broke = attempt(-1 / 3)
    worked = attempt(0.0, 1 / 3)
    finished = attempt(2 / 3, passed=3)
    ran_out = attempt(0.0, done=False)
    played = [gave_up, looked, made_and_removed, broke, worked, finished, ran_out]
    assert at_stop(played) == AtStop(n=6, passed=1, idle=4)


def test_thirds_that_add_up_to_nothing_are_nothing_in_spite_of_rounding() -> None:
    thirds = attempt(1 / 3, 1 / 3, 1 / 3, -(1 / 3 + 1 / 3 + 1 / 3) + 1e-12)
    assert at_stop([thirds]) == AtStop(1, 0, 1)


def test_a_task_that_is_done_at_the_start_is_not_idle_where_it_passes() -> None:
    assert at_stop([attempt(passed=3)]) == AtStop(1, 1, 0)


def test_an_end_by_the_environment_counts_like_a_word_of_the_policy() -> None:
    assert at_stop([replace(attempt(0.0), stop_reason=StopReason.ENV_DONE)]) == AtStop(1, 0, 1)


def test_a_world_that_reports_no_progress_says_nothing() -> None:
    assert progress(attempt(None)) is None
    assert at_stop([attempt(None)]) is None
    assert at_stop([attempt(None), attempt(0.0)]) == AtStop(1, 0, 1)


def test_an_attempt_that_is_paid_by_parts_says_nothing() -> None:
    paid = attempt(0.0)
    paid = replace(paid, grade=replace(paid.grade, rewards=(RewardPart("won", 0.0),)))
    assert at_stop([paid]) is None
    assert by_need({"t": paid}, {"new": {"t": paid}}) is None


def test_assertions_are_told_apart_by_what_doing_nothing_meets() -> None:
    idle = {"a": attempt(passed=1), "b": attempt(passed=0)}
    before = {"a": attempt(passed=0), "b": attempt(passed=2)}
    after = {"a": attempt(passed=1), "b": attempt(passed=2)}
    arms = {"do-nothing": idle, "before": before, "after": after}
    found = by_need(idle, arms, "before", "after")
    assert found is not None
    assert found.totals == (1, 5)
    assert found.held == {"do-nothing": (1, 0), "before": (0, 2), "after": (1, 2)}
    assert found.gained is not None
    met, unmet = found.gained
    assert (met.value, met.interval) == (1.0, None), "of one task alone"
    assert unmet.value == 0.0
    assert unmet.interval is not None
    assert by_need(idle, arms) == replace(found, gained=None)


def test_nothing_is_gained_of_assertions_that_are_not_there() -> None:
    idle = {"a": attempt(passed=0), "b": attempt(passed=0)}
    found = by_need(idle, {"idle": idle}, "idle", "idle")
    assert found is not None
    assert found.totals == (0, 6)
    assert found.gained is not None
    assert found.gained[0] == Estimate(0.0, None)


@pytest.mark.parametrize("limit", [StopReason.MAX_TURNS, StopReason.CONTEXT_FULL])
def test_an_attempt_that_a_limit_ended_is_no_stop(limit: StopReason) -> None:
    assert at_stop([replace(attempt(0.0), stop_reason=limit)]) == AtStop(0, 0, 0)


# --- in a real shell ------------------------------------------------------------------------------


SHELL = {
    "gives up": replies("TASK_COMPLETE"),
    "looks": replies(bash("cat notes.txt"), "TASK_COMPLETE"),
    "breaks": replies(bash("rm notes.txt"), "TASK_COMPLETE"),
    "makes and breaks": replies(bash("echo done > beta.txt; rm notes.txt"), "TASK_COMPLETE"),
    "works": replies(bash("echo done > beta.txt"), "TASK_COMPLETE"),
    "works late": replies(bash("ls"), bash("echo done > beta.txt") + "\nTASK_COMPLETE"),
    "goes on": replies(bash("ls")),
}


@pytest.mark.parametrize(
    ("said", "idle", "passed"),
    [
        ("gives up", 1, 0),
        ("looks", 1, 0),
        ("breaks", 1, 0),
        ("makes and breaks", 1, 0),  # as many assertions as at the start
        ("works", 0, 1),
        ("works late", 0, 1),
    ],
)
def test_a_stop_in_a_real_shell_is_idle_or_done(
    tmp_path: Path, said: str, idle: int, passed: int
) -> None:
    played = asyncio.run(attempt_of(tmp_path, said))
    assert at_stop([played]) == AtStop(1, passed, idle)


def test_an_attempt_in_a_real_shell_that_goes_on_is_no_stop(tmp_path: Path) -> None:
    assert at_stop([asyncio.run(attempt_of(tmp_path, "goes on"))]) == AtStop(0, 0, 0)


async def attempt_of(root: Path, said: str) -> Trajectory:
    return await player(root, SHELL[said]).play(write_task("beta"), 0, lambda turn: 1)
