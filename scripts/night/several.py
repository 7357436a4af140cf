"""Plays nights one after another: those of a sweep.

Which nights are over is read from their folders, so the same call goes on where the last one
stopped. A night is never begun that would not end in the time that is left, as far as that can be
known: the first of a number of steps is begun, because no step was measured yet.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from fieldkit.errors import Interrupted, PoolConverged
from scripts.base.display import duration, make_display
from scripts.night.loop import LoopOptions, run_loop, with_options
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.next_phase import Phase
from scripts.run.plan import seconds_allotted
from scripts.run.reader import RunReader
from scripts.run.state import look, read_files, read_measured, seconds_to_end, steps_planned

AS_SET = LoopOptions()
"""A night as its run.toml says."""


def night_seconds(nights: Sequence[RunFolder], options: LoopOptions = AS_SET) -> float | None:
    """What a night takes: the median of those that are over; None where none is."""
    took = [_seconds(night) for night in nights if is_over(night, options)]
    return statistics.median(took) if took else None


def _seconds(night: RunFolder) -> float:
    return sum(t.wall for t in RunReader(night).timings)


def _seconds_left(night: RunFolder, whole: float | None, options: LoopOptions) -> float | None:
    """What is left of a night, of which a whole one takes so many seconds: while none is over, what
    its own steps or its run.minutes say; None for a number of steps of which none was measured."""
    if whole is not None:
        return max(0.0, whole - _seconds(night))
    config = with_options(read_config(night.config), options)
    run, files = config.run, read_files(night, config)
    measured = read_measured(night, files)
    left = seconds_to_end(config, files, steps_planned(night, config, files), measured)
    return seconds_allotted(run.steps, run.minutes, measured) if left is None else left


def is_over(night: RunFolder, options: LoopOptions = AS_SET) -> bool:
    """Whether nothing is left to do, or nothing left to learn."""
    if not night.manifest.is_file():
        return False
    phase, _ = look(night, with_options(read_config(night.config), options))
    return phase in (Phase.DONE, Phase.CONVERGED)


def play_nights(
    nights: Sequence[RunFolder],
    options: LoopOptions,
    until: float | None,
    say: Callable[[str], None],
    go_on: str,
) -> bool:
    """Play what is left of `nights`; False where the time did not suffice.

    until: `time.monotonic()` by which they have to be over. go_on: the command that a person types
    to go on. Raises `Interrupted` naming it, and any other error of a night as it is.
    """
    for number, night in enumerate(nights, 1):
        if is_over(night, options):
            continue
        seconds = _seconds_left(night, night_seconds(nights, options), options)
        left = None if until is None else until - time.monotonic()
        if left is not None and left < (seconds or 0.0):
            say(
                f"night {number} of {len(nights)}, {night.name}, is not begun: a night takes about"
                f" {duration(seconds or 0.0)}, {duration(max(0.0, left))} are left; `{go_on}` goes"
                " on"
            )
            return False
        about = f", about {duration(seconds)}" if seconds else ""
        say(f"night {number} of {len(nights)}: {night.name}{about}")
        try:
            run_loop(night, options, make_display(details=False))
        except PoolConverged as e:
            say(f"{night.name}: {e}")
        except Interrupted:
            raise Interrupted(f"stopped; `{go_on}` goes on from here") from None
    return True
