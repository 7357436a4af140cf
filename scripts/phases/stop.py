"""`grpo stop`: end a run's engine, and the trainer that stays beside it, when no loop uses them.

Ends only what the run's ledger owns. Does not stop a running loop: the loop would take its engine's
end for a failure.
"""

from __future__ import annotations

from collections.abc import Callable

from fieldkit.process.ledger import Ledger
from rollout.engine.serve import find_engine, stop_engine
from scripts.phases.training.kept_trainer import running
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock
from scripts.run.manifest import check_host, read_manifest


def stop_idle_engine(folder: RunFolder, config: RunConfig, say: Callable[[str], None]) -> str:
    """Stop the engine and the remains of a crashed one. Raises `NotOwner` while a loop runs, and
    where the run is another host's: its processes are not among this one's, and look ended."""
    with run_lock(folder.lock):
        check_host(folder, read_manifest(folder))
        engine = find_engine(folder.path) is not None
        trainer = running(Ledger(folder.ledger)) is not None
        ended = stop_engine(folder.path, config.engine, say)
    return f"run {folder.name}: {_told(engine, trainer, ended)}"


def _told(engine: bool, trainer: bool, ended: int) -> str:
    """engine, trainer: it ran. ended: processes of servers."""
    if engine:
        return "engine stopped"
    if ended:
        return f"ended what a killed engine left ({ended} process{'es' if ended > 1 else ''})"
    return "trainer ended; no engine ran" if trainer else "no engine"
