"""A child program: its lines, its end, and that it does not outlive who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from fieldkit.errors import Unavailable
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import LEDGER_VARIABLE, environment
from scripts.base import children
from scripts.base.children import Program, run_child, run_children


def run(code: str, folder: Path, log: Path, **more: Any) -> int:
    """Run Python code as a child that a ledger in `folder` knows."""
    ledger = Ledger(folder / LEDGER_FILE)
    return run_child(python(code), ledger=ledger, name="child", log=log, **more)


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_lines_come_in_order_and_stderr_goes_to_the_log(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys; print('one'); print('two'); print('why', file=sys.stderr); sys.exit(3)"
    log = tmp_path / "log" / "child.log"
    assert run(code, tmp_path, log, on_line=lines.append) == 3
    assert lines == ["one", "two"]
    assert log.read_text() == "why\n"


def test_a_last_line_without_its_newline_is_a_line(tmp_path: Path) -> None:
    lines: list[str] = []
    run("print('x', end='')", tmp_path, tmp_path / "l", on_line=lines.append)
    assert lines == ["x"]


def test_a_child_that_a_signal_ended_has_the_shells_exit_code(tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    assert run(code, tmp_path, tmp_path / "l", on_line=print) == 128 + signal.SIGKILL


def test_asked_to_stop_a_child_gets_sigterm(tmp_path: Path) -> None:
    code = "import signal; print('up', flush=True); signal.pause()"
    seen: list[str] = []
    ended = run(code, tmp_path, tmp_path / "l", on_line=seen.append, stop_asked=lambda: bool(seen))
    assert ended == 128 + signal.SIGTERM


def test_a_child_that_has_closed_its_stdout_can_still_be_stopped(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    code = (
        f"import os, time; os.close(1); time.sleep(0.2); open({str(asked)!r}, 'x'); time.sleep(15)"
    )
    ended = run(code, tmp_path, tmp_path / "l", on_line=print, stop_asked=asked.exists)
    assert ended == 128 + signal.SIGTERM


def test_a_child_that_no_signal_ends_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that hangs in a driver."""
    monkeypatch.setattr(children, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(children, "_KILL_SECONDS", 0.2)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: None)
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    seen: list[str] = []
    try:
        with pytest.raises(Unavailable, match=r"child: process \d+ did not end after SIGKILL"):
            run(code, tmp_path, tmp_path / "l", on_line=seen.append, stop_asked=lambda: bool(seen))
    finally:
        os.kill(int(seen[0]), signal.SIGKILL)


PARENT = """
import sys
import time
from pathlib import Path
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from scripts.base.children import run_child
child = [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
log = Path(sys.argv[1])
ledger = Ledger(log.with_name(LEDGER_FILE))
run_child(child, ledger=ledger, name="child", log=log, on_line=lambda line: print(line, flush=True))
"""


def test_a_child_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-c", PARENT, str(tmp_path / "l")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=10)
    assert not alive


def test_the_ledger_names_a_child_while_it_lives_and_no_longer(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER_FILE)
    seen: list[tuple[int | None, int | None, str]] = []

    def look(line: str) -> None:
        (entry,) = ledger.entries()
        marks = environment(int(line))
        seen.append((entry.pid, entry.parent, marks[LEDGER_VARIABLE]))

    # It waits for its end to be asked for, so that it is alive while it is looked at.
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    run(code, tmp_path, tmp_path / "l", on_line=look, stop_asked=lambda: bool(seen))
    ((pid, parent, path),) = seen
    assert pid is not None
    assert (parent, path) == (os.getpid(), str(ledger.path))
    assert ledger.entries() == []


# --- two at the same time -------------------------------------------------------------------------


def test_two_children_run_at_the_same_time_and_both_are_heard(tmp_path: Path) -> None:
    """Each waits for what the other writes, so that one after the other would never end."""
    code = """
import pathlib, sys, time
mine, other = map(pathlib.Path, sys.argv[1:])
mine.touch()
while not other.exists():
    time.sleep(0.01)
print(mine.name)
sys.exit(3 if mine.name == "a" else 0)
"""
    heard: dict[str, list[str]] = {"a": [], "b": []}
    ended: list[tuple[str, int]] = []

    def program(name: str, other: str) -> Program:
        return Program(
            python(code, str(tmp_path / name), str(tmp_path / other)),
            name,
            tmp_path / "log",
            on_line=heard[name].append,
            on_end=lambda exit_code: ended.append((name, exit_code)),
        )

    ledger = Ledger(tmp_path / LEDGER_FILE)
    assert run_children([program("a", "b"), program("b", "a")], ledger=ledger) == [3, 0]
    assert heard == {"a": ["a"], "b": ["b"]}
    assert sorted(ended) == [("a", 3), ("b", 0)]
    assert ledger.entries() == []


def test_one_of_two_children_is_stopped_when_the_other_has_ended(tmp_path: Path) -> None:
    over: list[int] = []
    quick = Program(python(""), "quick", tmp_path / "log", print, on_end=over.append)
    waits = Program(
        python("import signal; signal.pause()"),
        "waits",
        tmp_path / "log",
        print,
        stop_asked=lambda: bool(over),
    )
    codes = run_children([quick, waits], ledger=Ledger(tmp_path / LEDGER_FILE))
    assert codes == [0, 128 + signal.SIGTERM]


def test_an_error_of_the_parent_leaves_neither_of_two_children(tmp_path: Path) -> None:
    seen: list[int] = []

    def fail(line: str) -> None:
        seen.append(int(line))
        if len(seen) == 2:
            raise RuntimeError("the display broke")

    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    both = [Program(python(code), name, tmp_path / "log", fail) for name in ("a", "b")]
    with pytest.raises(RuntimeError, match="the display broke"):
        run_children(both, ledger=Ledger(tmp_path / LEDGER_FILE))
    assert not any(map(psutil.pid_exists, seen))
