"""What the journal's last words mean."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import pytest

from fieldkit.files.journal import Entry
from scripts.watch.activity import Activity, State, activity, lives

LOOP = 77


def entry(event: str, pid: int = 5, at: float = 100.0, **data: Any) -> Entry:
    return Entry(at, pid, event, data)


def what(*entries: Entry, loop: int | None = LOOP, alive: bool = True) -> Activity:
    return activity(entries, loop, lambda e: alive)


def test_a_folder_without_a_journal_is_fresh() -> None:
    assert what(loop=None).state is State.FRESH


def test_a_phase_that_began_and_lives_is_working() -> None:
    now = what(entry("phase_start", phase="rollout"), entry("adapter_served", version="v1"))
    assert now == Activity(State.WORKING, "rollout", 100.0, 5)


def test_a_phase_that_began_and_is_gone_was_killed() -> None:
    now = what(entry("phase_start", phase="train"), loop=None, alive=False)
    assert now.state is State.STOPPED
    assert now.why == "the train phase was killed"
    begun = entry("phase_start", phase="train")
    assert what(begun, loop=LOOP, alive=False).state is State.BETWEEN, "its loop does it again"


def test_a_loop_that_lives_after_a_failed_phase_is_about_to_do_it_again() -> None:
    failed = entry("phase_end", phase="rollout", exit=4, error="the engine did not answer")
    assert what(failed, loop=LOOP).state is State.BETWEEN


def test_a_loop_that_waits_to_do_a_phase_again_says_why_and_until_when() -> None:
    failed: dict[str, Any] = {"phase": "train", "exit": 5, "error": "too little memory"}
    entries = (
        entry("phase_end", **failed),
        entry("memory_used", bytes=1),
        entry("pause", pid=LOOP, at=101.0, seconds=600.0, **failed),
    )
    why = "exit 5: too little memory"
    assert what(*entries) == Activity(State.WAITING, "train", 101.0, why=why, until=701.0)
    assert what(*entries, loop=LOOP + 1).state is State.BETWEEN, "another command has the lock"
    killed = what(*entries, loop=None, alive=False)
    assert (killed.state, killed.why) == (State.STOPPED, why)
    goes_on = what(*entries, entry("phase_start", phase="train"))
    assert goes_on.state is State.WORKING


@pytest.mark.parametrize(("loop", "state"), [(LOOP, State.BETWEEN), (None, State.IDLE)])
def test_after_a_phase_it_depends_on_whether_a_loop_goes_on(loop: int | None, state: State) -> None:
    assert what(entry("phase_end", phase="rollout", exit=0), loop=loop).state is state


def test_a_failed_phase_says_why() -> None:
    now = what(entry("phase_end", phase="train", exit=5, error="too little memory"), loop=None)
    assert now.state is State.STOPPED
    assert now.why == "exit 5: too little memory"


@pytest.mark.parametrize(
    ("following", "state"),
    [("done", State.DONE), ("converged", State.CONVERGED), ("rollout", State.STOPPED)],
)
def test_a_loop_that_ended_says_what_was_next(following: str, state: State) -> None:
    started = entry("phase_end", phase="eval", exit=0)
    assert what(started, entry("loop_end", next=following), loop=None).state is state


def test_a_loop_that_an_error_of_its_own_ended_says_which() -> None:
    over = entry("phase_end", phase="eval", exit=0)
    failed = entry("loop_end", exit=2, error="step.json: no")
    refused = (entry("phase_start", 9, phase="eval"), entry("phase_end", 9, exit=2, error="no"))
    for typed in ((), refused):
        now = what(over, failed, *typed, loop=None)
        assert (now.state, now.why) == (State.STOPPED, "exit 2: step.json: no")


def test_a_loop_that_its_phase_ended_says_what_the_phase_said_of_it() -> None:
    failed = entry("phase_end", phase="train", exit=5, error="too little memory")
    over = (failed, entry("memory_used", bytes=5), entry("loop_end", exit=5, error="the same"))
    refused = (entry("phase_start", 9, phase="eval"), entry("phase_end", 9, exit=2, error="no"))
    for typed in ((), refused):
        now = what(*over, *typed, loop=None)
        assert (now.phase, now.why) == ("train", "exit 5: too little memory")


def test_a_resumed_loop_is_no_longer_stopped() -> None:
    failed = entry("phase_end", phase="train", exit=5, error="too little memory")
    assert what(failed, entry("loop_start", limits={})).state is State.BETWEEN


@pytest.mark.parametrize("how", [{"exit": 0, "wrote": {}}, {"exit": 2, "error": "--step 999: no"}])
def test_a_look_or_a_refused_word_after_the_loops_end_changes_no_state(how: dict[str, Any]) -> None:
    over = entry("loop_end", next="done")
    typed = (entry("phase_start", 9, phase="eval"), entry("phase_end", 9, phase="eval", **how))
    assert what(over, *typed, loop=None).state is State.DONE


def test_a_phase_typed_after_the_loops_end_counts_while_it_runs_and_where_it_was_killed() -> None:
    begun = (entry("loop_end", next="done"), entry("phase_start", 9, phase="eval"))
    assert what(*begun).state is State.WORKING
    assert what(*begun, loop=None, alive=False).why == "the eval phase was killed"


def test_a_phase_that_takes_a_night_further_after_the_loops_end_counts() -> None:
    over = entry("loop_end", next="rollout")
    wrote = entry("phase_end", 9, phase="rollout", exit=0, wrote={"step-004/bundle": "sha"})
    failed = entry("phase_end", 10, phase="train", exit=5, error="too little memory")
    assert what(over, wrote, loop=None).state is State.IDLE
    assert what(over, wrote, failed, loop=None).why == "exit 5: too little memory"


def test_a_process_lives_as_long_as_it_is_the_one_that_wrote() -> None:
    mine = entry("phase_start", pid=os.getpid(), at=time.time())
    assert lives(mine)
    before_it_was_born = entry("phase_start", pid=os.getpid(), at=1.0)
    assert not lives(before_it_was_born)


def test_the_lock_tells_who_lives_where_somebody_has_set_the_clock_since() -> None:
    """Both seem to have been born long after they wrote."""
    phase = subprocess.Popen(["sleep", "60"])
    begun = entry("phase_start", pid=phase.pid, at=1.0)
    try:
        assert lives(begun, loop=os.getpid())
        assert lives(entry("phase_start", pid=os.getpid(), at=1.0), loop=os.getpid())
        assert not lives(begun, loop=os.getppid())
    finally:
        phase.kill()
        phase.wait()
    assert not lives(begun, loop=os.getpid())


def test_a_process_that_ended_does_not_live() -> None:
    child = subprocess.Popen(["true"])
    at = time.time()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(entry("phase_start", pid=child.pid, at=at)), "a zombie"
    child.wait()
    assert not lives(entry("phase_start", pid=child.pid, at=at))


# --- a rollout beside a training ------------------------------------------------------------------

BOTH = (entry("phase_start", 5, phase="train"), entry("phase_start", 6, 101.0, phase="rollout"))


def test_two_phases_that_run_at_the_same_time_are_both_named() -> None:
    now = what(*BOTH)
    assert now == Activity(State.WORKING, "train", 100.0, 5, beside="rollout")
    assert now.phases == "train, rollout beside it"


@pytest.mark.parametrize(("over", "left"), [(5, "rollout"), (6, "train")])
def test_when_one_of_two_phases_has_ended_the_other_is_at_work(over: int, left: str) -> None:
    now = what(*BOTH, entry("phase_end", over, phase="either", exit=5, error="why"))
    assert (now.state, now.phases) == (State.WORKING, left)


def test_when_both_have_ended_the_loop_is_between_phases() -> None:
    ends = [entry("phase_end", pid, phase="either", exit=0) for pid in (6, 5)]
    assert what(*BOTH, *ends, alive=False).state is State.BETWEEN
