"""A night on the scripted engine while it runs: started, watched, and looked at afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fieldkit.codec import read_trajectories
from fieldkit.files.journal import Journal
from fieldkit.records import Trajectory
from scripts.run.folder import RunFolder
from tests.chaos.night import GRPO_RUN, SITE

WORLD = SITE.parent / "world"


@contextmanager
def as_from_a_terminal() -> Iterator[None]:
    """Programs that are started in the block hear SIGINT and SIGHUP. Tests may be started in the
    background, where the shell has both ignored."""
    heard = (signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Night:
    """A night in a folder of its own, and the loops that were run over it."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = RunFolder(folder)
        self.env = {**os.environ, "PYTHONPATH": f"{WORLD}{os.pathsep}{SITE}", **env}
        self.log = folder.with_name("said.log")

    @property
    def said(self) -> str:
        """Everything that the loops have said so far."""
        return self.log.read_text()

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """`grpo run`; ended at the latest on leaving."""
        with open(self.log, "ab") as out:
            loop = subprocess.Popen(
                [*GRPO_RUN, str(self.folder.path), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.env,
            )
        try:
            yield loop
        finally:
            loop.kill()
            loop.wait()

    def run(self, *words: str) -> int:
        """Run the loop to its end; its exit code."""
        with self.running(*words) as loop:
            return loop.wait()

    def until(self, loop: subprocess.Popen[bytes], holds: Callable[[], object]) -> None:
        """Wait until something can be seen in the folder of a loop that is at work."""
        while not holds():
            assert loop.poll() is None, f"the loop ended first:\n{self.said}"
            time.sleep(0.005)  # files are written by others, and are over within moments

    def events(self, event: str, phase: str) -> int:
        journal = Journal(self.folder.journal).read()
        return sum(e.event == event and e.data.get("phase") == phase for e in journal)

    def finished_episodes(self) -> tuple[Trajectory, ...]:
        """Those of the rollout under way."""
        partial = self.folder.partial(1)
        return read_trajectories(partial) if partial.is_file() else ()

    def trained(self) -> str:
        """The hash of step 1's adapter."""
        return str(json.loads(self.folder.summary(1).read_text())["adapter_sha"])
