"""The deadline of `--until`, and the comparison of the forecast with the actual end.

The first measured step gives a forecast, which the journal stores; at the end of the night it is
compared with the actual end. `scripts.run.plan` does the planning.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from fieldkit.errors import BadInput
from fieldkit.files.journal import Entry
from scripts.run.next_phase import Phase
from scripts.words.quantities import clock, counted

FORECAST = "forecast"
"""The event in the journal: steps in all, and `end`, the Unix time at which all is done."""

_LATE_SECONDS = 6 * 3600.0
"""For how long after its time `--until` still means that of the night which it was typed for."""

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def next_time(text: str, now: float) -> float:
    """The Unix time at which a clock here shows HH:MM next, after `now`. Raises `BadInput`."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise BadInput(f"--until {text}: a time of day is written HH:MM, as in --until 07:00")
    hour, minute = map(int, found.groups())
    year, month, day, *_ = time.localtime(now)
    for days in (0, 1):
        # mktime normalises the day, and -1 lets it find out about daylight saving itself.
        at = time.mktime((year, month, day + days, hour, minute, 0, 0, 0, -1))
        if at > now:
            return at
    raise BadInput(f"--until {text}: no such time today or tomorrow")


def deadline(text: str, now: float, journal: Sequence[Entry]) -> float:
    """The Unix time of `--until HH:MM` for a loop that starts at `now`. Raises as `next_time`.

    The next such time; but the one that has just gone by, where the night had it as its end, took
    steps and is not done: the command that goes on after a stop is typed when somebody sees that it
    stopped, once or several times, and must not add a day to the night.
    """
    at = next_time(text, now)
    loops = [i for i, e in enumerate(journal) if e.event == "loop_start"]
    if not loops:
        return at
    ends = [journal[i].data.get("limits", {}).get("until") for i in loops]
    before = ends[-1]
    of_the_night = len(list(takewhile(lambda end: end == before, reversed(ends))))
    since = journal[loops[-of_the_night] :]
    steps = {Phase.ROLLOUT.value, Phase.TRAIN.value}
    has_begun = any(e.event == "phase_start" and e.data.get("phase") in steps for e in since)
    is_over = since[-1].data.get("next") in (Phase.DONE.value, Phase.CONVERGED.value)
    if before is None or not has_begun or is_over or not 0 <= now - before <= _LATE_SECONDS:
        return at
    return float(before) if clock(before) == clock(at) else at


def seconds_until(deadline: float | None) -> float | None:
    """Seconds from now to a deadline in Unix seconds; None without one."""
    return None if deadline is None else deadline - time.time()


@dataclass(frozen=True)
class Held:
    """A forecast and the actual end. Times are Unix seconds."""

    made: float
    steps: int
    end: float
    done_steps: int
    done: float

    def told(self) -> str:
        """Both in a sentence."""
        late = self.done - self.end
        how = "to the minute" if abs(late) < 60 else _minutes(late)
        return (
            f"At {clock(self.made)} the forecast was {counted(self.steps, 'step')}, done at"
            f" {clock(self.end)}; it became {self.done_steps}, done at {clock(self.done)}: {how}."
        )


def held(journal: Sequence[Entry], done_steps: int) -> Held | None:
    """The last loop's first forecast, compared with its last phase. None if the loop made no
    forecast, or if the clock was set back to before it.

    For a run with nothing left to do. done_steps: the steps that it finished.
    """
    made: Entry | None = None
    done: float | None = None
    in_its_loop = False  # a phase that is typed after the loop's end is no part of the night
    for entry in journal:
        if entry.event in ("loop_start", "loop_end"):
            in_its_loop = False
        elif entry.event == FORECAST and not in_its_loop:
            made, done, in_its_loop = entry, None, True
        elif entry.event == "phase_end" and in_its_loop:
            done = entry.time
    if made is None or done is None or done < made.time:
        return None
    return Held(made.time, int(made.data["steps"]), float(made.data["end"]), done_steps, done)


def _minutes(seconds: float) -> str:
    minutes = round(abs(seconds) / 60)
    return f"{minutes} min {'later' if seconds > 0 else 'earlier'}"
