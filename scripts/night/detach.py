"""`grpo run --detach`: runs the loop in its own session, so that it survives a closed terminal.

The same command starts again without the terminal; its output goes to a log of the run. The loop
carries a mark like every process that a run starts. It enters the ledger only once it owns the run,
so a loop that is refused cannot replace the entry of the running one.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fieldkit.errors import Unavailable
from fieldkit.process.ledger import Ledger, spawn
from scripts.base.exit_codes import raise_code
from scripts.run.folder import RunFolder
from scripts.run.lock import LOOP, holder

_START_SECONDS = 20.0
"""Time limit for the detached loop to take the run's lock; it needs about a second."""
_POLL_SECONDS = 0.1


def detach(folder: RunFolder, options: Sequence[str]) -> tuple[int, Path]:
    """Start `grpo run` with `options` in the background; return its pid and its log.

    Returns when the loop owns the run. Raises the error for its exit code if it ends before that,
    and `Unavailable` where it takes too long; then it is not ended.
    """
    log = folder.log / f"detached-{time.strftime('%Y%m%d-%H%M%S')}.log"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by what is started now
    try:
        child = spawn(
            [sys.executable, "-P", "-m", "scripts.cli", "run", str(folder.path), *options],
            {**os.environ, **Ledger(folder.ledger).unannounced(LOOP)},
            log,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    _await_ownership(child, folder, log)
    return child.pid, log


def _await_ownership(child: subprocess.Popen[bytes], folder: RunFolder, log: Path) -> None:
    """Wait until the lock names the child, or until the child ends with a reason. Raises
    `Unavailable` where it does neither in time."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            code = child.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if holder(folder.lock) == child.pid:
                return
        else:
            said = log.read_text(encoding="utf-8", errors="replace").strip()
            raise_code(code, said, "the detached loop", log)
            return
    raise Unavailable(
        f"the loop was started as pid {child.pid}, and does not own the run after "
        f"{_START_SECONDS:g} s. It may yet: `tail -f {shlex.quote(str(log))}` shows what it does, "
        f"and `kill {child.pid}` ends it"
    )
