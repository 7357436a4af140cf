"""A server that one command wanted: ended with the command, also where that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import family
from rollout.engine.replica import ENGINE

PROGRAM = """
import os, signal, sys
from pathlib import Path
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.guard import ended_afterwards

run = Path(sys.argv[1])
with ended_afterwards(run, EngineSettings(), print):
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    server = Ledger(run / LEDGER_FILE).launch(
        "engine", command, env=os.environ, cwd=run, log=run / "log", info={}
    )
    print(server.marker, flush=True)
    if sys.argv[2] == "kill":
        os.killpg(0, signal.SIGKILL)
"""


def play(run: Path, how: str) -> tuple[int, str]:
    """Run the program; its exit code, and its server's marker."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run), how],
        capture_output=True,
        text=True,
        start_new_session=True,  # for a group of its own, which it may kill
    )
    return done.returncode, done.stdout.splitlines()[0]


def ledger(run: Path) -> Ledger:
    return Ledger(run / LEDGER_FILE)


def test_the_server_ends_with_the_block(tmp_path: Path) -> None:
    code, marker = play(tmp_path, "end")
    assert code == 0
    assert not family(marker)
    assert ledger(tmp_path).get(ENGINE) is None


def test_the_server_ends_when_its_command_is_killed_and_its_whole_group(tmp_path: Path) -> None:
    code, marker = play(tmp_path, "kill")
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while ledger(tmp_path).get(ENGINE) is not None and time.monotonic() < deadline:
        time.sleep(0.05)  # another process is at work; its files are all there is to look at
    assert not family(marker)
    assert ledger(tmp_path).get(ENGINE) is None
