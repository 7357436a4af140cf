"""Plays nights one after another: those of a sweep.

Which nights are over is read from their folders, so the same call goes on where the last one
stopped. A night is never begun that would not end in the time that is left, as far as that can be
known: the first of a number of steps is begun, because no step was measured yet.

Nobody is there at night, so a night that fails does not end the others (`play_nights`), unless they
would fail like it. Exit codes alone do not tell: a missing model and a gradient that is not finite
are both 2, a full disk and a batch too large for one arm are both 5. But what every night lacks is
found by its start, before any phase of it has gone well. A night whose files cannot be read says
nothing of the others.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fieldkit.errors import (
    BadInput,
    FieldkitError,
    Interrupted,
    NotOwner,
    PoolConverged,
    foreseen,
)
from fieldkit.files.journal import Journal
from fieldkit.process.owned import since_boot
from scripts.base.display import make_display, to_the_second
from scripts.base.exit_codes import ChildBug
from scripts.base.signals import Wish
from scripts.night.loop import run_loop
from scripts.night.loop_options import LoopOptions, with_options
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest, refuse_change
from scripts.run.next_phase import Phase
from scripts.run.reader import RunReader
from scripts.run.state import look, outlook, read_files, read_measured, steps_planned

AS_SET = LoopOptions()
"""A night as its run.toml says."""

_UNREADABLE = (BadInput, NotOwner)
"""What a look at a night raises. Ctrl-C raises another `FieldkitError`, at any moment."""


class NightsFailed(FieldkitError):
    """Some nights failed; their errors are in the text. `exit_code` is that of the first.

    names: the nights. whole: whether all the others are over.
    """

    def __init__(self, failed: Mapping[str, FieldkitError | ChildBug], go_on: str, whole: bool):
        told = "; ".join(f"{name} failed: {error}" for name, error in failed.items())
        super().__init__(f"{told}; `{go_on}` goes on with {'it' if len(failed) == 1 else 'them'}")
        first = next(iter(failed.values()))
        self.exit_code = first.exit_code if isinstance(first, FieldkitError) else 1
        self.names, self.whole = frozenset(failed), whole


def night_seconds(nights: Sequence[RunFolder], options: LoopOptions = AS_SET) -> float | None:
    """What a night takes: the median of those that are over; None where none is. One that cannot be
    read does not count."""
    took = []
    for night in nights:
        with contextlib.suppress(*_UNREADABLE):
            if is_over(night, options):
                took.append(_seconds(night))
    return statistics.median(took) if took else None


def _seconds(night: RunFolder) -> float:
    return sum(t.wall for t in RunReader(night).timings)


def _seconds_left(night: RunFolder, whole: float | None, options: LoopOptions) -> float | None:
    """What is left of a night, of which a whole one takes so many seconds: while none is over, what
    its own steps or its run.minutes say; None for a number of steps of which none was measured."""
    if whole is not None:
        return max(0.0, whole - _seconds(night))
    config = with_options(read_config(night.config), options)
    files = read_files(night, config)
    measured = read_measured(night, files)
    return outlook(config, files, steps_planned(night, config, files), measured).left


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
    wish: Wish | None = None,
) -> bool:
    """Play what is left of `nights`; False where the time did not suffice.

    until: `timings.since_boot()` by which they have to be over. go_on: the command that a person
    types to go on. wish: gets what the person asks for; one to end ends this call and later ones.

    A night that fails is told, and the others go on. They do not where no phase of any night has
    gone well before, or since the failure before: the next night would fail too. Nor do they where
    another loop or host owns the night, or its settings, data or program are not those that it
    began with. One whose files cannot be read counts as failed and says nothing of the others.
    Nights that failed the last time come after the others, which would not get their turn where one
    always fails at once.

    At the end raises `NightsFailed`, which has the first failure's exit code and names every night
    that failed, its error and `go_on`. `Interrupted`, naming `go_on`, is raised at once, and where
    a night that the person asked to end had come to its own end, before the next.
    """
    wish = wish or Wish()
    failed: dict[str, FieldkitError | ChildBug] = {}
    ends = {night: _newest_end(night) for night in nights}
    whole, goes_on = True, True
    well = (newest := max(ends.values(), default=_NONE)) > _NONE and not newest.failed
    for night in sorted(nights, key=lambda night: ends[night].failed):
        which = f"night {nights.index(night) + 1} of {len(nights)}"
        others = [other for other in nights if other.name not in failed]
        try:
            due = _due(night, others, options)
        except _UNREADABLE as e:
            failed[night.name] = e
            goes_on = goes_on and not isinstance(e, NotOwner) and not _is_refused(night, options)
            say(f"{night.name} failed: {e}")
            continue
        if due is None:
            continue
        if wish.finish:
            raise Interrupted(f"stopped; `{go_on}` goes on from here")
        if not goes_on:
            whole = False
            break
        seconds, left = due.seconds, None if until is None else until - since_boot()
        if left is not None and left < (seconds or 0.0):
            say(
                f"{which}, {night.name}, is not begun: a night takes about"
                f" {to_the_second(seconds or 0.0)}, {to_the_second(max(0.0, left))} are left;"
                f" `{go_on}` goes on"
            )
            whole = False
            break
        about = f", about {to_the_second(seconds)}" if seconds else ""
        say(f"{which}: {night.name}{about}")
        try:
            run_loop(night, options, make_display(details=False), wish)
            well = True
        except PoolConverged as e:
            say(f"{night.name}: {e}")
            well = True
        except Interrupted:
            raise Interrupted(f"stopped; `{go_on}` goes on from here") from None
        except Exception as e:  # of a phase, or of the page of a night that is saved
            known = e if isinstance(e, ChildBug) else foreseen(e)
            failed[night.name] = known or ChildBug(f"{type(e).__name__}: {e}")
            is_elsewhere = isinstance(e, NotOwner)  # and may be over any time
            whole = whole and not is_elsewhere
            goes_on = not is_elsewhere and (well or _went_well(night, due.known))
            if goes_on or wish.finish:
                say(f"{night.name} failed: {failed[night.name]}")
            well = False
    if failed:
        raise NightsFailed(failed, go_on, whole)
    return whole


class _Due(NamedTuple):
    """A night that is not over: the seconds that it takes, as `_seconds_left`; the entries of its
    journal."""

    seconds: float | None
    known: int


def _due(night: RunFolder, others: Sequence[RunFolder], options: LoopOptions) -> _Due | None:
    """What is left of a night, by its files and those of `others`; None where it is over."""
    if is_over(night, options):
        return None
    seconds = _seconds_left(night, night_seconds(others, options), options)
    return _Due(seconds, len(Journal(night.journal).read()))


class _End(NamedTuple):
    """The newest end of a phase or a loop of a night: its Unix time, and whether it failed."""

    at: float
    failed: bool


_NONE = _End(0.0, False)


def _newest_end(night: RunFolder) -> _End:
    """How a night ended the last time, by its journal; `_NONE` where it did not, or none can be
    read."""
    try:
        entries = Journal(night.journal).read()
    except BadInput:
        return _NONE
    for e in reversed(entries):
        if e.event in ("phase_end", "loop_end"):
            return _End(e.time, e.data.get("exit", 0) not in _NO_FAILURE)
    return _NONE


_NO_FAILURE = (0, PoolConverged.exit_code, Interrupted.exit_code)


def _is_refused(night: RunFolder, options: LoopOptions) -> bool:
    """Whether settings, data or program are no longer those that a night began with. Nights that
    have not begun would be played with the new ones, and could not be compared with it."""
    try:
        manifest = read_manifest(night)
        config = with_options(read_config(night.config), options)
    except BadInput:
        return False
    try:
        if manifest is not None:
            refuse_change(night, manifest, config)
    except BadInput:
        return True
    return False


def _went_well(night: RunFolder, known: int) -> bool:
    """Whether a phase of a night came to its end, by its journal after so many entries."""
    since = Journal(night.journal).read()[known:]
    return any(e.event == "phase_end" and e.data.get("exit") == 0 for e in since)
