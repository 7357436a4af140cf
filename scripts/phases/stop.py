"""`grpo stop`: end a run's engine, and the trainer that stays beside it, when no loop uses them.

Ends only what the run's ledger owns. Does not stop a running loop: the loop would take its engine's
end for a failure.
"""

from __future__ import annotations

from collections.abc import Callable

from rollout.engine.serve import find_engine, stop_engine
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.run.manifest import check_host, read_manifest


def stop_idle_engine(folder: RunFolder, config: RunConfig, say: Callable[[str], None]) -> str:
    """Stop the engine and the remains of a crashed one. Raises `NotOwner` while a loop runs, and
    where the run is another host's: its processes are not among this one's, and look ended."""
    with run_lock(folder.lock):
        check_host(folder, read_manifest(folder))
        running = find_engine(folder.path) is not None
        ended = stop_engine(folder.path, config.engine, say)
    return f"run {folder.name}: {_told(running, ended)}"


def _told(running: bool, ended: int) -> str:
    if running:
        return "engine stopped"
    if not ended:
        return "no engine"
    return f"ended what a killed engine left ({ended} process{'es' if ended > 1 else ''})"
