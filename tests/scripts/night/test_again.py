"""Which failed phases a loop does once more, when, and what it does with the engine meanwhile."""

from __future__ import annotations

import errno
import io
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Interrupted, MissingFile, Shortage, Unavailable
from fieldkit.files.journal import Journal
from scripts.base.children import Program
from scripts.base.display import PlainDisplay
from scripts.base.exit_codes import KILLED, ChildBug, Killed
from scripts.night import loop, running_phases
from scripts.night.again import Again
from scripts.night.loop import run_loop
from scripts.night.loop_options import LoopOptions
from scripts.run.folder import RunFolder
from scripts.run.next_phase import Phase
from scripts.run.state import PAUSE, read_files
from tests.scripts.night.running import as_from_a_terminal
from tests.scripts.night.test_loop_end import made as made_night

FULL = OSError(errno.ENOSPC, "No space left on device")


def pauses(phase: Phase, error: BaseException, times: int, *, well: bool) -> list[float | None]:
    """What follows so many failures in a row."""
    again = Again()
    if well:
        again.went_well(phase)
    return [again.pause(phase, error) for _ in range(times)]


@pytest.mark.parametrize("phase", [Phase.ROLLOUT, Phase.EVAL])
def test_an_engine_that_is_lost_is_replaced_once(phase: Phase) -> None:
    for well in (True, False):
        assert pauses(phase, Unavailable("no answer"), 3, well=well) == [0.0, None, None]


@pytest.mark.parametrize("phase", [Phase.START, Phase.TRAIN])
def test_a_start_and_a_training_that_are_refused_are_not_repeated(phase: Phase) -> None:
    assert pauses(phase, Unavailable("no sandbox"), 1, well=True) == [None]


@pytest.mark.parametrize("phase", [Phase.START, Phase.ROLLOUT, Phase.TRAIN])
def test_a_phase_that_was_killed_is_done_once_more(phase: Phase) -> None:
    assert pauses(phase, Killed("killed"), 2, well=False) == [0.0, None]


def test_memory_and_disk_that_were_there_before_are_waited_for_up_to_an_hour() -> None:
    error = Shortage("no space left on this disk")
    assert pauses(Phase.TRAIN, error, 4, well=True) == [60.0, 600.0, 3600.0, None]


def test_the_engine_ends_before_a_trainer_that_lacked_memory_begins_again() -> None:
    full, gone = Shortage("a micro-batch does not fit the GPU"), Unavailable("no answer")
    assert Again.ends_engine(Phase.TRAIN, full)
    assert not Again.ends_engine(Phase.ROLLOUT, full)
    assert Again.ends_engine(Phase.ROLLOUT, gone)
    assert not Again.ends_engine(Phase.TRAIN, ChildBug("a traceback"))
    assert not Again.ends_engine(Phase.TRAIN, Killed("killed")), "the engine is well"


def test_a_phase_that_never_went_well_tells_its_shortage_or_its_bug_at_once() -> None:
    for error in (Shortage("too large"), ChildBug("a traceback")):
        assert pauses(Phase.TRAIN, error, 1, well=False) == [None]


@pytest.mark.parametrize(
    "error", [ChildBug("CUDA error"), FileNotFoundError(errno.ENOENT, "gone", ".venv/bin/python")]
)
def test_a_bug_of_a_phase_that_went_well_before_may_pass_as_an_upgrade_does(
    error: Exception,
) -> None:
    assert pauses(Phase.TRAIN, error, 2, well=True) == [60.0, None]
    assert pauses(Phase.TRAIN, error, 1, well=False) == [None]


@pytest.mark.parametrize(
    "error", [BadInput("a key"), MissingFile("a file"), Interrupted("asked"), RuntimeError("ours")]
)
def test_what_a_person_has_to_change_or_wanted_is_not_repeated(error: Exception) -> None:
    assert pauses(Phase.ROLLOUT, error, 1, well=True) == [None]


def test_every_phase_that_goes_well_begins_the_count_anew() -> None:
    again = Again()
    for _ in range(3):
        assert again.pause(Phase.ROLLOUT, Unavailable("no answer")) == 0.0
        again.went_well(Phase.ROLLOUT)


# -- in a loop -------------------------------------------------------------------------------------


class Played:
    """A night that is done but for an arm, and what becomes of the phases that are to play it."""

    def __init__(self, night: RunFolder, *ends: int | OSError) -> None:
        (self.newest,) = [
            e.parent for e in night.evals.glob("*/eval.json") if '"sha-2"' in e.read_text()
        ]
        self.away = self.newest.rename(night.path / "away")
        self.night, self.ends = night, list(ends)
        self.meanwhile: Callable[[], object] = lambda: None
        self.out = io.StringIO()
        self.engines_ended = 0

    def play(self, programs: Sequence[Program], on_tick: Callable[[], None], **_: Any) -> None:
        self.meanwhile()
        on_tick()
        end = self.ends.pop(0)
        if isinstance(end, OSError):
            raise end
        if end == 0:
            self.away.rename(self.newest)
        programs[0].on_end(end)

    def stop(self, *_: Any) -> int:
        self.engines_ended += 1
        return 0

    def run(self) -> None:
        run_loop(self.night, LoopOptions(), PlainDisplay(self.out, details=False))


Make = Callable[..., Played]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(*ends: int | OSError) -> Played:
        played = Played(made_night(tmp_path), *ends)
        monkeypatch.setattr(running_phases, "run_children", played.play)
        monkeypatch.setattr("rollout.engine.serve.stop_engine", played.stop)
        return played

    return make


def test_a_loop_whose_engine_hung_ends_it_and_plays_the_same_phase_again(made: Make) -> None:
    played = made(Unavailable.exit_code, 0)
    played.run()
    assert "the eval phase ended with exit code 4" in played.out.getvalue()
    assert "the eval phase is done once more (Ctrl-C stops)" in played.out.getvalue()
    assert played.engines_ended == 2, "the one that hung, and that of the night's end"


def test_a_second_failure_ends_the_loop_as_ever(made: Make) -> None:
    played = made(Unavailable.exit_code, Unavailable.exit_code)
    with pytest.raises(Unavailable):
        played.run()
    assert played.ends == []


@pytest.mark.parametrize("code", KILLED)
def test_a_loop_whose_phase_was_killed_plays_it_again_on_the_engine_that_is_there(
    made: Make, code: int
) -> None:
    played = made(code, 0)
    played.run()
    assert played.engines_ended == 1


def test_a_phase_that_a_stranger_told_to_end_counts_as_one_that_was_killed(made: Make) -> None:
    played = made(Interrupted.exit_code, 0)
    played.run()
    assert "told to end, and not by this loop" in played.out.getvalue()


def test_and_where_it_happens_again_the_night_has_failed_and_was_not_stopped(made: Make) -> None:
    played = made(Interrupted.exit_code, Interrupted.exit_code)
    with pytest.raises(Killed):
        played.run()


def test_a_phase_that_goes_well_and_does_nothing_ends_the_night(made: Make) -> None:
    """Loop and phase read the run differently; without an end it would go on for ever."""
    played = made(0, 0, 0)
    played.newest = played.away  # what is renamed changes nothing
    with pytest.raises(loop.Standstill, match=r"the eval phase went well.*`grpo run .*` reads it"):
        played.run()
    assert len(played.ends) == 2


def test_a_setting_that_is_changed_meanwhile_counts_from_the_next_phase_on(made: Make) -> None:
    """A phase reads run.toml itself, so a loop that had its own idea would ask for what is done."""
    played = made(0, Interrupted.exit_code, Interrupted.exit_code)
    toml = played.night.config

    def one_more() -> None:
        toml.write_text(re.sub(r"(?m)^steps = .*$", "steps = 3", toml.read_text()))

    played.meanwhile = one_more
    with pytest.raises(Killed, match="the rollout phase"):
        played.run()


@pytest.mark.parametrize("times", [1, 3])
def test_a_disk_that_cannot_be_read_for_a_moment_is_looked_at_again(
    made: Make, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(loop, "_READ_AGAIN_SECONDS", (0.01, 0.01, 0.01))
    played, failures = made(0), [OSError(errno.ESTALE, "Stale file handle")] * times

    def read(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return read_files(*given)

    monkeypatch.setattr(loop, "read_files", read)
    played.run()
    assert played.out.getvalue().count("Stale file handle; looked at again") == times


def test_a_figure_that_cannot_be_read_ends_no_phase(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = made(0)

    def gone(*_: Any) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("scripts.night.held.Held.look", gone)
    played.run()


def test_a_disk_that_is_full_for_the_loop_too_is_looked_at_again_where_it_had_room_before(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Again()
    again.went_well(Phase.EVAL)
    monkeypatch.setattr(loop, "Again", lambda: again)
    monkeypatch.setattr("scripts.night.again._LATER", (0.01,))
    played = made(FULL, 0)
    played.run()
    assert "no space left on this disk" in played.out.getvalue()
    (pause,) = (e.data for e in Journal(played.night.journal).read() if e.event == PAUSE)
    assert (pause["phase"], pause["seconds"]) == (Phase.EVAL.value, 0.01)
    assert pause["exit"] == Shortage.exit_code
    assert "no space left on this disk" in pause["error"]


def test_a_journal_that_takes_no_line_keeps_no_loop_from_waiting(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, refused, append = Again(), [], Journal.append
    again.went_well(Phase.EVAL)
    monkeypatch.setattr(loop, "Again", lambda: again)
    monkeypatch.setattr("scripts.night.again._LATER", (0.01,))

    def full(journal: Journal, event: str, **data: Any) -> None:
        if event == PAUSE:
            refused.append(event)
            raise FULL
        append(journal, event, **data)

    monkeypatch.setattr(Journal, "append", full)
    played = made(FULL, 0)
    played.run()
    assert (refused, played.ends) == ([PAUSE], [])


def test_who_asked_to_finish_is_told_the_failure_at_once(made: Make) -> None:
    played = made(Unavailable.exit_code, 0)
    played.meanwhile = lambda: signal.raise_signal(signal.SIGINT)
    with as_from_a_terminal(), pytest.raises(Unavailable):
        played.run()
    assert played.ends == [0]
