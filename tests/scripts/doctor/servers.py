"""Small processes in the place of engines and trainers, started for a run through its ledger."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import Owned, start_time
from scripts.doctor.ownership import Family, families

# A server with a worker; each says its pid when it is ready to be killed.
SERVER = """
import os, signal, subprocess, sys, time
{prelude}
worker = subprocess.Popen([sys.executable, "-c", {worker!r}])
print(os.getpid(), worker.pid, flush=True)
signal.pause()
"""
WORKER = "import signal; signal.pause()"


def start(run: Path, *, prelude: str = "", worker: str = WORKER, name: str = "trainer") -> Owned:
    """Start a server with a worker for a run and wait until both are up."""
    run.mkdir(parents=True, exist_ok=True)
    log = run / "server.log"
    code = SERVER.format(prelude=prelude, worker=f"{prelude}\n{worker}")
    owned = Ledger(run / LEDGER_FILE).launch(
        name, [sys.executable, "-c", code], env=dict(os.environ), cwd=run, log=log, info={}
    )
    with subprocess.Popen(
        ["tail", "-n", "+1", "-F", "--pid", str(owned.pid), str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline()
        tail.kill()
    return owned


def mine(checkout: Path) -> list[Family]:
    """The families of this test's checkout: other tests and nights have theirs."""
    return [f for f in families() if f.run.path.is_relative_to(checkout)]


def gone(pids: tuple[int, ...]) -> bool:
    return all(start_time(pid) is None for pid in pids)


@contextmanager
def loop_of(run: Path) -> Iterator[None]:
    """A loop that holds the run's lock."""
    with open(run / "lock", "w", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
