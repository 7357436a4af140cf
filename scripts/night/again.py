"""Which failed phases a loop does once more, and when: nobody is there to type the command again.

A phase is idempotent and keeps what it had finished, so doing it again is what a person would do in
the morning. It is done where what failed may be right again, and not where a person has to change
something. Nothing here runs a phase.
"""

from __future__ import annotations

from fieldkit.errors import BadInput, Shortage, Unavailable
from scripts.base.exit_codes import ChildBug, Killed
from scripts.run.next_phase import Phase

_PLAYS = (Phase.ROLLOUT, Phase.EVAL)
"""What plays on an engine, which may have died or hung. Training has a second try of its own, and a
start has its person before it."""

_AT_ONCE = (0.0,)
_SOON = (60.0,)
"""A GPU may have had an error that passes with its process; packages may be upgraded just now."""
_LATER = (60.0, 600.0, 3600.0)
"""Another program may give back the memory or the disk that it took: in a minute, or in an hour."""


class Again:
    """What became of a loop's phases so far."""

    def __init__(self) -> None:
        self._went_well: set[Phase] = set()
        self._failures: dict[Phase, int] = {}

    def went_well(self, phase: Phase) -> None:
        """Note that a phase came to its end."""
        self._went_well.add(phase)
        self._failures.pop(phase, None)

    def pause(self, phase: Phase, error: BaseException) -> float | None:
        """Note that a phase failed; the seconds after which it is to be done again, None for not.

        Lost processes are replaced at once. A shortage, or an error that nobody foresaw, comes from
        this run or this machine, unless the phase has gone well before in this loop. An `OSError`
        is the loop's own: it could not start the phase.
        """
        failures = self._failures.get(phase, 0)
        self._failures[phase] = failures + 1
        pauses = self._pauses(phase, error)
        return pauses[failures] if failures < len(pauses) else None

    @staticmethod
    def ends_engine(phase: Phase, error: BaseException) -> bool:
        """Whether the engine ends before the phase is done again: it may hang and say that it is
        well, or hold the memory that the trainer lacks."""
        if isinstance(error, Killed):
            return False
        lacks = isinstance(error, Shortage) and phase is Phase.TRAIN
        return lacks or isinstance(error, Unavailable)

    def _pauses(self, phase: Phase, error: BaseException) -> tuple[float, ...]:
        if isinstance(error, Killed) or (isinstance(error, Unavailable) and phase in _PLAYS):
            return _AT_ONCE
        if phase not in self._went_well or isinstance(error, BadInput):
            return ()
        if isinstance(error, Shortage):
            return _LATER
        return _SOON if isinstance(error, ChildBug | OSError) else ()
