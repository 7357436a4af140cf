"""Owned processes: found again, ended with all their children, and nobody else's touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.process import owned as owned_module
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import (
    MARKER_VARIABLE,
    Owned,
    boot_id,
    environment,
    family,
    is_running,
    marked,
    since_boot,
    start_time,
    terminate,
    wait_ended,
)

GRACE = 0.3

# A leader that takes its child along when it is asked to end; says "ready" when both are up.
FAMILY = "trap 'kill %1; exit' TERM; sleep 600 & echo ready; wait"
# The same, deaf to SIGTERM: the leader and its child.
DEAF_FAMILY = "trap '' TERM; sleep 600 & echo ready; while :; do wait; done"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger whose processes do not outlive the test."""
    ledger = Ledger(tmp_path / "ledger.json")
    yield ledger
    for owned in ledger.entries():
        terminate(owned, 0.0)


def launch(ledger: Ledger, script: str, name: str = "job") -> Owned:
    """Start a shell script and wait until it says that it is ready."""
    log = ledger.path.parent / f"{name}.log"
    owned = ledger.launch(
        name,
        ["bash", "-c", script],
        env=dict(os.environ),
        cwd=ledger.path.parent,
        log=log,
        info={"port": 1},
    )
    with subprocess.Popen(
        ["tail", "-n", "+1", "-F", "--pid", str(owned.pid), str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"ready\n"
        tail.terminate()
    return owned


def test_a_launched_process_is_in_the_ledger_with_what_identifies_it(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    found = Ledger(ledger.path).get("job")
    assert found == owned
    assert found.boot_id == boot_id()
    assert found.pid is not None
    assert found.start_time == start_time(found.pid)
    assert found.info == {"port": 1}
    assert is_running(found)


def test_a_launched_process_leads_a_session_of_its_own(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    assert owned.pid is not None
    assert os.getsid(owned.pid) == owned.pid


def test_it_is_found_and_ended_by_another_process_than_the_one_that_started_it(
    ledger: Ledger,
) -> None:
    owned = launch(ledger, FAMILY)
    script = (
        "import sys; from pathlib import Path; from fieldkit.process.owned import *\n"
        "from fieldkit.process.ledger import Ledger\n"
        "owned = Ledger(Path(sys.argv[1])).get('job')\n"
        "assert is_running(owned)\n"
        "print(len(terminate(owned, 5.0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(ledger.path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"
    assert not is_running(owned)
    assert family(owned.marker) == []


def test_children_of_a_killed_leader_are_found_by_the_marker_and_ended(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    assert owned.pid is not None
    os.kill(owned.pid, signal.SIGKILL)
    assert wait_ended(owned, 5.0)
    orphans = family(owned.marker)
    assert len(orphans) == 1
    assert terminate(owned, GRACE) == orphans
    assert family(owned.marker) == []


def test_children_that_outlive_an_orderly_leader_are_ended_soon(ledger: Ledger) -> None:
    owned = launch(ledger, "sleep 600 & echo ready; wait")
    began = time.monotonic()
    assert len(terminate(owned, 60.0)) == 2
    assert family(owned.marker) == []
    assert time.monotonic() - began < 30


def test_a_family_that_ignores_sigterm_is_killed_after_the_grace(ledger: Ledger) -> None:
    owned = launch(ledger, DEAF_FAMILY)
    assert len(terminate(owned, GRACE)) == 2
    assert family(owned.marker) == []
    assert not is_running(owned)


def test_a_stopped_family_is_ended(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    for pid in family(owned.marker):
        os.kill(pid, signal.SIGSTOP)
    terminate(owned, GRACE)
    assert family(owned.marker) == []


def test_the_resource_tracker_is_the_last_to_go(ledger: Ledger, tmp_path: Path) -> None:
    """It removes the shared memory of the others, so it has to see them end."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import signal, time\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "block = SharedMemory(create=True, size=4096)\n"
        f"open({str(tmp_path / 'name')!r}, 'w').write(block.name)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    owned = launch(ledger, f"exec {sys.executable} {script}")
    block = Path("/dev/shm") / (tmp_path / "name").read_text()
    assert block.exists()
    terminate(owned, GRACE)
    assert not block.exists()
    assert family(owned.marker) == []


def test_a_stranger_with_the_same_command_is_left_alone(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    with subprocess.Popen(["bash", "-c", FAMILY], stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"ready\n"
        terminate(owned, GRACE)
        alive = stranger.poll() is None
        with subprocess.Popen(["pkill", "-P", str(stranger.pid)]):
            stranger.kill()
    assert alive


def test_a_family_of_another_marker_is_left_alone(ledger: Ledger) -> None:
    one, other = launch(ledger, FAMILY, "one"), launch(ledger, FAMILY, "other")
    terminate(one, GRACE)
    assert is_running(other)
    assert len(family(other.marker)) == 2


def test_a_process_that_has_written_over_its_marks_is_ended_all_the_same(ledger: Ledger) -> None:
    """As setproctitle does; here they are missing from the start."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        owned = ledger.started(ledger.announce("job", ["sleep"], ledger.path), child.pid)
        assert is_running(owned)
        assert family(owned.marker) == []
        assert terminate(owned, 5.0) == [child.pid]
    assert child.returncode == -signal.SIGTERM


def test_a_program_with_a_title_of_its_own_is_found_by_its_marks(ledger: Ledger) -> None:
    pytest.importorskip("setproctitle")
    title = "import setproctitle, time; setproctitle.setproctitle('x' * 200); "
    program = title + "print('ready', flush=True); time.sleep(600)"
    owned = launch(ledger, f'exec {sys.executable} -c "{program}"')
    assert family(owned.marker) == [owned.pid]


def test_a_process_that_would_end_itself_is_left_out(ledger: Ledger) -> None:
    own = ledger.started(ledger.announce("job", ["pytest"], ledger.path), os.getpid())
    assert terminate(own, 0.0) == []
    ledger.forget("job")


def test_a_later_owner_of_the_pid_is_not_taken_for_ours(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    assert owned.start_time is not None
    assert not is_running(replace(owned, start_time=owned.start_time - 1))


def test_an_entry_of_another_boot_is_not_running(ledger: Ledger) -> None:
    assert not is_running(replace(launch(ledger, FAMILY), boot_id="another"))


def test_a_process_started_just_before_a_crash_is_found_by_its_entry(ledger: Ledger) -> None:
    """The entry without a pid is all that a crash between the two writes leaves."""
    owned = launch(ledger, FAMILY)
    ledger.record(replace(owned, pid=None, start_time=None))
    left = ledger.get("job")
    assert left is not None
    assert not is_running(left)
    assert owned.pid in terminate(left, 5.0)
    assert family(owned.marker) == []


def test_an_ended_child_is_no_zombie_of_ours(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    terminate(owned, 5.0)
    assert not Path(f"/proc/{owned.pid}").exists()


def test_the_marker_is_read_from_the_environment_that_the_process_was_started_with(
    ledger: Ledger,
) -> None:
    owned = launch(ledger, FAMILY)
    assert owned.pid is not None
    assert environment(owned.pid)[MARKER_VARIABLE] == owned.marker


def test_a_gone_process_has_no_environment_and_no_start_time() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert environment(child.pid) == {}
    assert start_time(child.pid) is None


def test_a_name_with_parentheses_does_not_confuse_the_start_time(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "600"]) as child:
        fields = (
            Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        )
        assert start_time(child.pid) == int(fields[19])
        child.kill()


def test_waiting_for_a_live_process_gives_up_after_the_time(ledger: Ledger) -> None:
    assert not wait_ended(launch(ledger, FAMILY), 0.05)


def test_a_new_entry_takes_the_place_of_the_old_one_of_its_name(ledger: Ledger) -> None:
    launch(ledger, FAMILY, "other")
    old = launch(ledger, FAMILY)
    terminate(old, 5.0)
    new = launch(ledger, FAMILY)
    assert [e.marker for e in ledger.entries() if e.name == "job"] == [new.marker]
    terminate(new, 5.0)
    ledger.forget("job")
    assert [e.name for e in ledger.entries()] == ["other"]


def test_a_name_whose_process_runs_cannot_be_launched_again(ledger: Ledger) -> None:
    first = launch(ledger, FAMILY)
    with pytest.raises(BadInput, match=rf"ledger\.json: job runs already, as pid {first.pid}"):
        launch(ledger, FAMILY)
    assert ledger.entries() == [first]


def test_a_command_that_cannot_be_started_leaves_no_entry(ledger: Ledger) -> None:
    other, log = launch(ledger, FAMILY, "other"), ledger.path.with_name("log")
    with pytest.raises(FileNotFoundError, match="no-such-command"):
        ledger.launch("job", ["/no-such-command"], env={}, cwd=log.parent, log=log, info={})
    assert ledger.entries() == [other]


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": 2, "processes": []}',
        "[]",
        '{"schema": 1, "processes": [{"name": "job"}]}',
        '{"schema": 1, "processes": [3]}',
        json.dumps({"schema": 1, "processes": [{**asdict(Owned("job", "m")), "command": "ls"}]}),
        json.dumps({"schema": 1, "processes": [{**asdict(Owned("job", "m")), "info": []}]}),
        '{"schema": 1, "processes": 5}',
        json.dumps({"schema": 1, "processes": [{**asdict(Owned("job", "m")), "marker": None}]}),
        json.dumps({"schema": 1, "processes": [{**asdict(Owned("job", "m")), "pid": "7"}]}),
        json.dumps({"schema": 1, "processes": [asdict(Owned("job", ""))]}),
    ],
)
def test_a_file_that_is_no_ledger_is_bad_input(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"ledger\.json"):
        Ledger(path).entries()


@pytest.mark.parametrize("marker", [None, ""])
def test_no_process_is_opened_for_an_entry_without_a_marker(
    marker: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process of the user lacks one too. Such an entry once ended them all."""

    def opened(pid: int) -> int:
        raise AssertionError(f"process {pid} was opened")

    monkeypatch.setattr(os, "pidfd_open", opened)
    entry = Owned("job", marker)  # type: ignore[arg-type]
    for act in (partial(terminate, entry, GRACE), partial(family, entry.marker)):
        with pytest.raises(BadInput, match="a process is known by a text that is not empty"):
            act()


def test_a_command_may_hold_a_path_and_an_empty_one_is_refused(
    ledger: Ledger, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="job: the command is empty"):
        ledger.launch("job", [], env=os.environ, cwd=tmp_path, log=tmp_path / "log", info={})
    program = Path("/bin/true")
    owned = ledger.launch(
        "job", [program], env=os.environ, cwd=tmp_path, log=tmp_path / "log", info={}
    )
    assert owned.command == ("/bin/true",)


def test_an_early_ledger_that_does_not_say_who_started_what_is_read(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    value = json.loads(ledger.path.read_text())
    for entry in value["processes"]:
        del entry["parent"]
    ledger.path.write_text(json.dumps(value))
    assert ledger.get("job") == replace(owned, parent=None)
    ledger.record(replace(owned, name="other"))
    assert [(e.name, e.parent) for e in ledger.entries()] == [("job", None), ("other", os.getpid())]


def test_what_ended_before_it_was_waited_for_has_ended(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    terminate(owned, 5.0)
    assert wait_ended(owned, 0.0)
    assert wait_ended(replace(owned, pid=None), 0.0)  # it was only announced


@pytest.mark.skipif(os.getuid() != 0, reason="starts a process of another user")
def test_another_users_process_is_not_ours_whatever_it_calls_itself(ledger: Ledger) -> None:
    owned = launch(ledger, FAMILY)
    env = {**os.environ, **ledger.marks(owned)}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=12345, env=env) as stranger:
        assert stranger.pid not in family(owned.marker)
        assert stranger.pid not in [m.pid for m in marked()]
        terminate(owned, GRACE)
        alive = stranger.poll() is None
        stranger.communicate()
    assert alive


def test_a_process_that_ends_while_all_are_looked_at_is_left_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = launch(ledger, FAMILY)
    with subprocess.Popen(["true"]) as gone:
        pass
    pids = [gone.pid, *psutil.pids()]
    monkeypatch.setattr(psutil, "pids", lambda: pids)
    assert owned.pid in family(owned.marker)
    assert owned.pid in [m.pid for m in marked()]


def test_what_even_sigkill_does_not_end_is_named_with_the_command_that_shows_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel holds such a process; here the signal is not sent."""
    owned = launch(ledger, "echo ready; exec sleep 600")
    with monkeypatch.context() as held:
        held.setattr(signal, "pidfd_send_signal", lambda *given: None)
        held.setattr(owned_module, "_KILL_SECONDS", 0.05)
        with pytest.raises(Unavailable, match=rf"`ps -o pid,stat,wchan,cmd -p {owned.pid}`"):
            terminate(owned, 0.0)


def test_seconds_since_boot_are_those_of_the_clock_by_which_processes_begin() -> None:
    began = start_time(os.getpid())
    assert began is not None
    age = since_boot() - began / os.sysconf("SC_CLK_TCK")
    assert 0 < age < 24 * 3600
