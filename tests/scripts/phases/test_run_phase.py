"""A phase is one function and one entry: the door to all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fieldkit.errors import BadInput, NotOwner
from fieldkit.files.journal import Journal
from scripts.base.events import Event, EventKind
from scripts.cli.phases import add_phase
from scripts.phases.context import Context, Done
from scripts.phases.registry import PHASES, PhaseEntry
from scripts.phases.run_phase import entered, run_phase
from scripts.run.folder import RunFolder
from scripts.run.lock import is_held, run_lock
from scripts.run.next_phase import Phase
from scripts.run.timings import LOOP_VARIABLE

ENDINGS = {Phase.DONE, Phase.CONVERGED}


def count(ctx: Context) -> Done:
    """A phase that is not ours: it counts files under the run's lock."""
    assert is_held(ctx.folder.lock)
    if "strict" in ctx.flags:
        raise BadInput("nothing to count")
    return Done(f"{len(list(ctx.folder.path.iterdir()))} files", {"counted": "sha"})


def refuse_none(ctx: Context) -> None:
    """What the phase cannot take."""
    if ctx.numbers.get("least") == 0:
        raise BadInput("--least 0: there is always a file")


COUNT = PhaseEntry(
    "count", "Count files.", count, flags={"strict": "Fail instead."}, check=refuse_none
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """A run folder, and the phase from outside among the known ones."""
    folder = RunFolder(tmp_path / "night")
    folder.path.mkdir()
    folder.config.touch()
    PHASES.register(COUNT.name, COUNT)
    yield folder
    PHASES.remove(COUNT.name)


def told(folder: RunFolder) -> list[dict[str, object]]:
    return [{"event": e.event, **e.data} for e in Journal(folder.journal).read()]


def test_a_phase_from_outside_runs_under_lock_and_journal_like_any_other(run: RunFolder) -> None:
    events: list[Event] = []
    done = run_phase("count", str(run.path), events.append)
    assert done.text == "3 files"  # run.toml, the lock and the journal
    assert not is_held(run.lock)
    begun, ended = told(run)
    assert begun == {"event": "phase_start", "phase": "count"}
    assert (ended["exit"], ended["wrote"]) == (0, {"counted": "sha"})
    assert Event(EventKind.PHASE, "count") in events


def test_the_coroutines_of_a_phase_share_one_event_loop(run: RunFolder) -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with entered(str(run.path), lambda event: None, "bwrap") as ctx:
        first = ctx.run_async(loop())
        assert ctx.run_async(loop()) is first
    assert first.is_closed()


def test_a_phase_from_outside_that_fails_is_journalled_with_its_exit_code(run: RunFolder) -> None:
    with pytest.raises(BadInput):
        run_phase("count", str(run.path), lambda event: None, flags=["strict"])
    assert (told(run)[-1]["exit"], told(run)[-1]["error"]) == (2, "nothing to count")


def test_a_phase_that_cannot_take_a_number_has_not_begun(run: RunFolder) -> None:
    with pytest.raises(BadInput, match="--least 0"):
        run_phase("count", str(run.path), lambda event: None, numbers={"least": 0})
    assert told(run) == []


def test_a_phase_from_outside_is_refused_where_another_loop_owns_the_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.run.lock._PATIENCE_SECONDS", 0.0)
    with run_lock(run.lock), pytest.raises(NotOwner):
        run_phase("count", str(run.path), lambda event: None)
    assert not run.journal.exists()


def test_a_phase_from_outside_is_a_command_with_its_help_and_flags(run: RunFolder) -> None:
    commands = typer.Typer()
    commands.callback()(lambda: None)
    add_phase(commands, COUNT)
    runner = CliRunner()
    assert "Count files." in runner.invoke(commands, ["--help"]).output
    assert "Fail instead." in runner.invoke(commands, ["count", "--help"]).output
    assert "3 files" in runner.invoke(commands, ["count", str(run.path)]).output
    refused = runner.invoke(commands, ["count", str(run.path), "--strict"])
    assert isinstance(refused.exception, BadInput)


def test_every_phase_that_can_be_next_is_one_that_can_be_run() -> None:
    assert {phase.value for phase in Phase if phase not in ENDINGS} <= set(PHASES)
    for entry in PHASES.values():
        assert [*inspect.signature(entry.load()).parameters] == ["ctx"], entry.name


@pytest.mark.parametrize("under_a_loop", [True, False])
def test_a_stop_is_told_once_by_the_loop_where_there_is_one(
    run: RunFolder, under_a_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LOOP_VARIABLE, raising=False)
    if under_a_loop:
        monkeypatch.setenv(LOOP_VARIABLE, "1")
    events: list[Event] = []
    with entered(str(run.path), events.append, "bwrap") as ctx:
        ctx.wish.ask_now()
    assert [e.text.startswith("stopping now") for e in events] == [True] * (not under_a_loop)
