"""The most memory that a run's engine and trainer held together while the loop looked.

Looked at now and then while a phase runs, because a program's peak is gone when it ends. Nothing is
looked at on a machine with a GPU: its memory is not what the forecast is of, and a driver that
hangs must not hang the loop.
"""

from __future__ import annotations

import time

from fieldkit.gate import memory
from rollout.engine.replica import is_engine
from scripts.phases.training.kept_trainer import TRAINER
from scripts.run.folder import RunFolder
from scripts.run.programs import Programs

_LOOK_SECONDS = 2.0
"""Shortest time between two looks: each reads the environment of every process."""

_NEWS = 1.01
"""How much more than the last told peak is worth telling."""


class Held:
    """Bytes that engine and trainer held together at most."""

    def __init__(self, folder: RunFolder) -> None:
        self._programs = Programs(folder)
        self._last = 0.0
        self._has_gpu = memory.gpu_total() is not None
        self._told = 0
        self.most = 0

    def look(self) -> None:
        """Look, unless the last look was a moment ago."""
        now = time.monotonic()
        if self._has_gpu or now - self._last < _LOOK_SECONDS:
            return
        self._last = now
        programs = self._programs.look(None)
        both = [p.held for p in programs if p.name == TRAINER or is_engine(p.name)]
        self.most = max(self.most, sum(both))

    def news(self) -> int | None:
        """The most so far if it has grown since this was last asked; None otherwise."""
        if self.most <= _NEWS * self._told:
            return None
        self._told = self.most
        return self.most
