"""What engine and trainer held at most in a run, beside what was forecast when it started.

The start phase journals the forecast and the loop what it saw; a person reads both in the morning.
Only for a machine without a GPU: a server on a GPU takes the share that it was given.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldkit.files.journal import Entry
from fieldkit.gate.memory import GIB
from fieldkit.records import Outcome, StepSummary

FORECAST = "memory_forecast"
"""The event in the journal: `bytes` that engine and trainer are expected to hold at most. engine:
false where no server is the run's own, so that they are the trainer's."""
USED = "memory_used"
"""The event in the journal: `bytes` that they held at most so far in this loop."""

_GROWN = 10
"""Steps after which vLLM's processes hold most of what they come to hold in a night of 20."""


def told(journal: Sequence[Entry], steps: Sequence[StepSummary]) -> str:
    """Forecast and use in a sentence; empty where one of them is not known, and where no step was
    trained, because the forecast is of the trainer too.

    What was used before the newest forecast (the run was started again) does not count.
    """
    n_trained = sum(s.outcome is Outcome.TRAINED for s in steps)
    if not n_trained:
        return ""
    forecast, used, engine = 0, 0, True
    for entry in journal:
        if entry.event == FORECAST:
            forecast, used = int(entry.data["bytes"]), 0
            engine = bool(entry.data.get("engine", True))
        elif entry.event == USED:
            used = max(used, int(entry.data["bytes"]))
    if not forecast or not used:
        return ""
    off = round(100 * (forecast / used - 1))
    error = "as forecast" if not off else f"the forecast was {abs(off)} % too {_way(off)}"
    if off > 0 and n_trained < _GROWN and engine:
        error += ", since it counts what vLLM comes to hold over 20 steps"
    return (
        f"Memory of {'engine and trainer' if engine else 'the trainer'}: forecast"
        f" {forecast / GIB:.1f} GiB, used {used / GIB:.1f} GiB at most: {error}."
    )


def _way(off: int) -> str:
    return "high" if off > 0 else "low"
