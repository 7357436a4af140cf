"""How `grpo run` ends: nothing of an engine outlives it, and what went wrong there is not hidden.

The nights are done already, so that their end is all that there is; the engines are small processes
in its place, started through the ledger.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from fieldkit.errors import BadInput, NotOwner, Shortage
from fieldkit.files.atomic import read_json, write_json
from fieldkit.files.journal import Journal
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import family, marked, wait_ended
from rollout.engine.leftovers import BESIDE
from rollout.engine.replica import ENGINE
from scripts.base.checkout import ROOT
from scripts.base.display import PlainDisplay
from scripts.base.exit_codes import ChildBug
from scripts.doctor.ownership import Family, Use, families
from scripts.night.detach import detach
from scripts.night.loop import run_loop
from scripts.night.loop_options import LoopOptions
from scripts.phases.stop import stop_idle_engine
from scripts.phases.training.kept_trainer import TRAINER
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.lock import LOOP, run_lock
from tests.scripts.doctor.servers import start
from tests.scripts.made_night import make_night

BAD_INPUT, SHORTAGE = 2, 5
IMPOSSIBLE = "[engine]\nmemory_margin_gib = -1e6\nmemory_seconds = {seconds}\n"
"""More memory than there is would have to come back within these seconds."""


@pytest.fixture
def night(tmp_path: Path) -> Iterator[RunFolder]:
    """A night that is done. Nothing of it outlives the test."""
    folder = made(tmp_path)
    yield folder
    for found in of(folder):
        for pid in found.pids:
            os.kill(pid, signal.SIGKILL)


def made(root: Path) -> RunFolder:
    night = make_night(root, n_steps=2)
    night.folder.adapter(0).mkdir()  # without any weights it would be a copy, which no loop runs
    data = night.config.data
    night.folder.config.write_text(
        "[run]\nsteps = 2\neval_every = 0\n"
        f'[data]\npool = "{data.pool}"\nheldout = "{data.heldout}"\n'
    )
    return night.folder


def of(night: RunFolder) -> list[Family]:
    return [f for f in families() if f.run.path == night.path]


def wants_memory(night: RunFolder, seconds: float) -> None:
    text = night.config.read_text()
    night.config.write_text(text + IMPOSSIBLE.format(seconds=seconds))


def grpo_run(night: RunFolder) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-m", "scripts.cli", "run", str(night.path)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def grpo_loop(night: RunFolder) -> subprocess.CompletedProcess[str]:
    words = [str(ROOT / "scripts" / "grpo_loop.sh"), str(night.path)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def kill_leader(night: RunFolder) -> str:
    """Start an engine and SIGKILL its first process only; its marker."""
    owned = start(night.path, name=ENGINE)
    assert owned.pid is not None
    os.kill(owned.pid, signal.SIGKILL)
    assert wait_ended(owned, 10)
    assert len(family(owned.marker)) == 1, "no orphan is left"
    return owned.marker


def test_a_loop_that_ends_takes_along_what_a_killed_engine_left(night: RunFolder) -> None:
    marker = kill_leader(night)
    ended = grpo_run(night)
    assert ended.returncode == 0, ended.stderr
    assert family(marker) == []
    assert Ledger(night.ledger).get(ENGINE) is None


def test_stop_ends_what_a_killed_engine_left_and_says_so(night: RunFolder) -> None:
    marker = kill_leader(night)
    config = read_config(night.config)
    said = stop_idle_engine(night, config, lambda line: None)
    assert said == "run night: ended what a killed engine left (1 process)"
    assert family(marker) == []
    assert stop_idle_engine(night, config, lambda line: None) == "run night: no engine"


def test_stop_ends_a_trainer_that_stands_by_itself_and_says_so(night: RunFolder) -> None:
    owned = start(night.path, name=TRAINER)
    ledger = Ledger(night.ledger)
    ledger.record(replace(owned, info={BESIDE: ENGINE}))
    said = stop_idle_engine(night, read_config(night.config), lambda line: None)
    assert said == "run night: trainer ended; no engine ran"
    assert family(owned.marker) == []
    assert ledger.get(TRAINER) is None


def test_a_loop_that_is_turned_away_leaves_no_log_of_its_own(night: RunFolder) -> None:
    """`grpo watch` shows the last line of the newest one."""
    with run_lock(night.lock):
        assert grpo_run(night).returncode == NotOwner.exit_code
    assert list(night.log.glob("loop-*.log")) == []


def test_stop_on_another_host_leaves_the_engine_in_the_ledger(night: RunFolder) -> None:
    start(night.path, name=ENGINE)
    manifest = read_json(night.manifest)
    elsewhere = {"name": "attic", "machine_id": "2222", "boot_id": "b"}
    write_json(night.manifest, {**manifest, "host": elsewhere})
    with pytest.raises(NotOwner, match=r"belongs to host attic"):
        stop_idle_engine(night, read_config(night.config), lambda line: None)
    assert Ledger(night.ledger).get(ENGINE) is not None


def test_memory_that_does_not_come_back_at_the_end_is_a_shortage_and_all_is_saved(
    night: RunFolder,
) -> None:
    wants_memory(night, 0)
    marker = start(night.path, name=ENGINE).marker
    ended = grpo_run(night)
    assert ended.returncode == SHORTAGE, ended.stdout + ended.stderr
    assert "everything is finished and saved; waiting for the engine's memory" in ended.stderr
    assert "largest holders: pid " in ended.stderr
    assert family(marker) == []
    assert Journal(night.journal).read()[-1].event == "loop_end"
    assert grpo_run(night).returncode == 0


def test_the_loop_in_bash_ends_with_the_same_shortage_and_then_well(night: RunFolder) -> None:
    wants_memory(night, 0)
    marker = start(night.path, name=ENGINE).marker
    ended = grpo_loop(night)
    assert ended.returncode == SHORTAGE, ended.stdout + ended.stderr
    assert "largest holders: pid " in ended.stderr
    assert family(marker) == []
    assert grpo_loop(night).returncode == 0


# -- the loop that an error ends ---------------------------------------------------------------


def run(night: RunFolder, out: IO[str]) -> None:
    """Run the loop in this process. Raises as `run_loop`."""
    run_loop(night, LoopOptions(), PlainDisplay(out, details=False))


def test_a_loop_that_an_error_ends_says_so_in_the_journal(night: RunFolder) -> None:
    night.summary(2).write_text("{")
    with pytest.raises(BadInput, match=r"step-002.step\.json"):
        run(night, io.StringIO())
    start, end = Journal(night.journal).read()
    assert (start.event, end.event, end.data["exit"]) == ("loop_start", "loop_end", BAD_INPUT)
    assert str(night.summary(2)) in end.data["error"]


@pytest.mark.parametrize("error", [Shortage("the GPU is full"), ChildBug("the GPU is full")])
def test_a_loop_that_an_error_ends_leaves_a_page_that_says_so(
    error: Exception, night: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest adapter is not evaluated yet, and the phase that would fails."""
    (newest,) = [e.parent for e in night.evals.glob("*/eval.json") if '"sha-2"' in e.read_text()]
    newest.rename(night.path / "away")

    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("scripts.night.running_phases.run_children", full)
    with pytest.raises(type(error), match="the GPU is full"):
        run(night, io.StringIO())
    page = (night.path / "report.html").read_text()
    assert "Stopped by an error after 2" in page
    assert "the GPU is full" in page


def test_a_loop_whose_journal_cannot_be_written_tells_the_first_error(
    night: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.summary(2).write_text("{")
    append = Journal.append

    def full(journal: Journal, event: str, **data: Any) -> None:
        if event == "loop_end":
            raise OSError(errno.ENOSPC, "No space left on device")
        append(journal, event, **data)

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(BadInput, match=r"step-002.step\.json"):
        run(night, io.StringIO())


def test_tables_that_cannot_be_shown_end_no_night_and_are_its_last_word(
    night: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arm is due; what would play it brings it back."""
    (newest,) = [e.parent for e in night.evals.glob("*/eval.json") if '"sha-2"' in e.read_text()]
    away = newest.rename(night.path / "away")
    monkeypatch.setattr(
        "scripts.night.running_phases.run_children", lambda *_, **__: away.rename(newest)
    )

    def broken(*words: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("scripts.evidence.findings.read_findings", broken)
    out = io.StringIO()
    with pytest.raises(RuntimeError, match="no font"):
        run(night, out)
    assert f"no tables (no font): `grpo table {night.typed}` makes them" in out.getvalue()
    assert Journal(night.journal).read()[-1].data == {"next": "done"}


# -- the loop that goes on in the background ---------------------------------------------------


def until_found(night: RunFolder) -> Family:
    """The detached loop's family, once it is in the ledger."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for found in of(night):
            if found.name == LOOP and found.entry is not None:
                return found
        time.sleep(0.05)  # it writes a file of its own; there is nothing to wait on
    raise AssertionError("the detached loop never was in the ledger")


def test_a_detached_loop_is_known_by_its_mark_and_no_stranger_to_the_doctor(
    night: RunFolder,
) -> None:
    wants_memory(night, 600)  # so that it is still there to be looked at
    start(night.path, name=ENGINE)
    pid, _ = detach(night, [])
    found = until_found(night)
    assert (found.pids, found.use) == ((pid,), Use.LOOP)
    assert found.entry is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(found.entry, 10)
    assert [f for f in of(night) if f.name == LOOP] == []


def test_a_detached_loop_that_has_ended_is_in_no_ledger(night: RunFolder) -> None:
    detach(night, [])
    deadline = time.monotonic() + 60
    while any(m.ledger == night.ledger for m in marked()):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # its parent has let go of it
    assert Ledger(night.ledger).entries() == []


def test_a_detached_loop_that_is_turned_away_does_not_take_the_working_ones_place(
    night: RunFolder,
) -> None:
    ledger = Ledger(night.ledger)
    works = ledger.started(ledger.announce(LOOP, ["grpo", "run"], night.log), os.getpid())
    with run_lock(night.lock), pytest.raises(NotOwner):
        detach(night, [])
    assert ledger.entries() == [works]
