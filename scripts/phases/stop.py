"""Ends what stays between a run's phases: its engine, and the trainer that stands beside it.

`grpo stop` does it when no loop uses them, the loop does it when it ends. Ends only what the run's
ledger owns. Does not stop a running loop: the loop would take its engine's end for a failure.
"""

from __future__ import annotations

from collections.abc import Callable

from rollout.engine.serve import find_engine, stop_engine
from scripts.phases.kept_trainer import stop_trainer
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.lock import run_lock


def stop_programs(folder: RunFolder, config: RunConfig, say: Callable[[str], None]) -> int:
    """End trainer and engine, and the remains of killed ones; returns the engine's processes.

    Raises as `stop_trainer` and `stop_engine`.
    """
    stop_trainer(folder.path)
    return stop_engine(folder.path, config.engine, say)


def stop_idle_engine(folder: RunFolder, config: RunConfig, say: Callable[[str], None]) -> str:
    """Stop the engine and the remains of a crashed one. Raises `NotOwner` while a loop runs."""
    with run_lock(folder.lock):
        running = find_engine(folder.path) is not None
        ended = stop_programs(folder, config, say)
    return f"run {folder.name}: {_told(running, ended)}"


def _told(running: bool, ended: int) -> str:
    if running:
        return "engine stopped"
    if not ended:
        return "no engine"
    return f"ended what a killed engine left ({ended} process{'es' if ended > 1 else ''})"
