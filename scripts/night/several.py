"""Plays nights one after another: those of a sweep.

Which nights are over is read from their folders, so the same call goes on where the last one
stopped. A night is never begun that would not end in the time that is left, as far as that can be
known: the first of a number of steps is begun, because no step was measured yet.

Nobody is there at night, so a night that fails does not end the others (`play_nights`), unless they
would fail like it. Exit codes alone do not tell: a missing model and a gradient that is not finite
are both 2, a full disk and a batch too large for one arm are both 5. But what every night lacks is
found by its start, before any phase of it has gone well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from fieldkit.errors import FieldkitError, Interrupted, NotOwner, PoolConverged
from fieldkit.files.journal import Journal
from scripts.base.display import make_display, to_the_second
from scripts.base.exit_codes import ChildBug
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
    to go on.

    A night that fails is told, and the others go on. They do not where no phase has gone well since
    the call, or since the failure before: the next night would fail too. Nor do they where another
    loop or host owns the night. At the end raises one error, which has the first failure's exit
    code and names every night that failed, its error and `go_on`. `Interrupted`, naming `go_on`, is
    raised at once.
    """
    failed: dict[str, FieldkitError | ChildBug] = {}
    whole, well = True, False
    for number, night in enumerate(nights, 1):
        if is_over(night, options):
            continue
        others = [other for other in nights if other.name not in failed]
        seconds = _seconds_left(night, night_seconds(others, options), options)
        left = None if until is None else until - time.monotonic()
        if left is not None and left < (seconds or 0.0):
            say(
                f"night {number} of {len(nights)}, {night.name}, is not begun: a night takes about"
                f" {to_the_second(seconds or 0.0)}, {to_the_second(max(0.0, left))} are left;"
                f" `{go_on}` goes on"
            )
            whole = False
            break
        about = f", about {to_the_second(seconds)}" if seconds else ""
        say(f"night {number} of {len(nights)}: {night.name}{about}")
        known = len(Journal(night.journal).read())
        try:
            run_loop(night, options, make_display(details=False))
            well = True
        except PoolConverged as e:
            say(f"{night.name}: {e}")
            well = True
        except Interrupted:
            raise Interrupted(f"stopped; `{go_on}` goes on from here") from None
        except (FieldkitError, ChildBug) as e:
            failed[night.name] = e
            if isinstance(e, NotOwner) or not (well or _went_well(night, known)):
                break
            say(f"{night.name} failed: {e}")
            well = False
    if failed:
        raise _told(failed, go_on)
    return whole


def _went_well(night: RunFolder, known: int) -> bool:
    """Whether a phase of a night came to its end, by its journal after so many entries."""
    since = Journal(night.journal).read()[known:]
    return any(e.event == "phase_end" and e.data.get("exit") == 0 for e in since)


def _told(failed: Mapping[str, FieldkitError | ChildBug], go_on: str) -> FieldkitError:
    """The nights that failed, as one error of the first one's exit code."""
    first = next(iter(failed.values()))
    kind = type(first) if isinstance(first, FieldkitError) else FieldkitError
    told = "; ".join(f"{name} failed: {error}" for name, error in failed.items())
    return kind(f"{told}; `{go_on}` goes on with {'it' if len(failed) == 1 else 'them'}")
