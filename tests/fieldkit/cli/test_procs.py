"""`fieldkit procs` shows a process that a ledger started, its children, and no stranger."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fieldkit.cli.command_line import main
from fieldkit.process import Ledger, terminate


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        main(["procs", *arguments])
    return capsys.readouterr().out


def test_a_started_process_is_listed_until_it_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path / "ledger.json")
    owned = ledger.launch(
        "server",
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={},
        cwd=tmp_path,
        log=tmp_path / "log",
        info={},
    )
    try:
        heading, row = listed(capsys, str(tmp_path)).splitlines()
        assert heading.split() == ["name", "pid", "age", "holds", "ledger"]
        assert row.split()[:2] == ["server", str(owned.pid)]
        (fact,) = json.loads(listed(capsys, str(ledger.path), "--json"))
        assert (fact["pid"], fact["leader"]) == (owned.pid, True)
        (tmp_path / "link").symlink_to(tmp_path)
        (same,) = json.loads(listed(capsys, str(tmp_path / "link"), "--json"))
        assert same["pid"] == owned.pid
        other = tmp_path / "other" / "ledger.json"
        other.parent.mkdir()
        Ledger(other).forget("nothing")
        assert json.loads(listed(capsys, str(other), "--json")) == []
        ledger.path.unlink()
        assert "in no ledger" in listed(capsys, str(ledger.path))
    finally:
        terminate(owned, 5.0)
    ledger.forget("server")
    assert json.loads(listed(capsys, str(tmp_path), "--json")) == []


@pytest.mark.parametrize("asked", ["typo", "."])
def test_a_folder_without_a_ledger_does_not_pass_for_one_without_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["procs", str(tmp_path / asked)])
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "no such ledger" in told.err


def test_a_ledger_that_cannot_be_read_hides_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path / "ledger.json")
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    owned = ledger.launch("server", program, env={}, cwd=tmp_path, log=tmp_path / "log", info={})
    try:
        ledger.path.write_text('{"schema": 2}')
        with pytest.raises(SystemExit, match="0"):
            main(["procs", str(tmp_path)])
        told = capsys.readouterr()
        assert f" {owned.pid} " in told.out
        assert told.err.startswith("warning: ")
        assert "schema" in told.err
    finally:
        terminate(owned, 5.0)
