"""A process that enters itself into a ledger, and one that is given a socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.process import Ledger, Owned, terminate
from fieldkit.process.owned import family, own_marks, wait_ended

ENROL = """
import sys
from pathlib import Path
from fieldkit.process import Ledger
ledger = Ledger(Path(sys.argv[1]))
with ledger.enrolled("watcher"):
    found = ledger.get("watcher")
    print(found and (found.pid, found.parent), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.json")


def enrolling(ledger: Ledger, marks: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ENROL, str(ledger.path)],
        env={**os.environ, **marks},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_is_in_the_ledger_from_its_own_entry_until_it_ends(ledger: Ledger) -> None:
    marks = ledger.unannounced("watcher")
    assert ledger.get("watcher") is None
    with enrolling(ledger, marks) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == f"{(child.pid, os.getpid())}\n"
        entry = ledger.get("watcher")
        assert entry is not None
        assert entry.marker in marks.values()
        child.communicate()
    assert child.returncode == 0
    assert ledger.get("watcher") is None


def test_a_program_that_a_person_started_is_in_no_ledger(ledger: Ledger) -> None:
    for marks in ({}, Ledger(ledger.path.parent / "other.json").unannounced("watcher")):
        with enrolling(ledger, marks) as child:
            assert child.communicate()[0] == "None\n"


def test_marks_are_handed_on_to_a_child_with_an_environment_of_its_own(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = ledger.unannounced("watcher")
    for name in marks:
        monkeypatch.delenv(name, raising=False)
    assert own_marks() == {}
    for name, value in marks.items():
        monkeypatch.setenv(name, value)
    assert own_marks() == marks


def test_a_launched_process_has_the_socket_it_was_given(ledger: Ledger, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answer = "s.accept()[0].sendall(b'here')"
        program = f"import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); {answer}"
        owned = Ledger(str(ledger.path)).launch(
            "server",
            [sys.executable, "-c", program, str(listening.fileno())],
            env={},
            cwd=str(tmp_path),
            log=str(tmp_path / "log"),
            info={},
            pass_fds=[listening.fileno()],
        )
        with socket.create_connection(listening.getsockname(), timeout=60) as asking:
            assert asking.recv(4) == b"here"
    terminate(owned, 5.0)


def test_of_many_that_launch_under_one_name_at_once_one_does(
    ledger: Ledger, tmp_path: Path
) -> None:
    def launch() -> Owned | None:
        try:
            return Ledger(ledger.path).launch(
                "server", ["sleep", "60"], env={}, cwd=tmp_path, log=tmp_path / "log", info={}
            )
        except BadInput:
            return None

    with ThreadPoolExecutor(8) as threads:
        launched = [o for o in threads.map(lambda _: launch(), range(8)) if o is not None]
    assert [ledger.get("server")] == launched
    terminate(launched[0], 5.0)


def test_what_an_ended_process_left_is_found_before_another_one_is_launched(
    ledger: Ledger, tmp_path: Path
) -> None:
    """As of a killed server whose engine lives: the next entry would hide it from every search."""

    def launch(command: str) -> Owned:
        words = ["bash", "-c", command]
        log = tmp_path / "log"
        return ledger.launch("server", words, env=dict(os.environ), cwd=tmp_path, log=log, info={})

    first = launch("setsid sleep 60 & exit 0")
    assert wait_ended(first, 10.0)
    (child,) = family(first.marker)
    with pytest.raises(BadInput, match=f"server runs already, as pid {child}; end it first"):
        launch("true")
    assert terminate(first, 5.0) == [child]
    assert wait_ended(launch("true"), 10.0)


def test_the_end_of_a_process_leaves_the_entry_of_its_successor(ledger: Ledger) -> None:
    first = ledger.announce("server", ["one"], "log")
    second = ledger.announce("server", ["two"], "log")
    ledger.forget(first)
    assert ledger.get("server") == second
    ledger.forget("server")
    assert ledger.get("server") is None
