"""The time that each part of a step took: timings.json, written as the phases end.

A phase's clock starts when its process does, so that starting Python is seen too. The wall is
measured on its own, from the first phase's start to the last one's end, so that the parts can be
held against it: what no part claims shows as the difference. A rollout may run beside the training
of the step before: the wall of a step begins where that of the step before it ended, so that the
walls of all steps add up to the night. Somebody may set the machine's clock
meanwhile: how long a phase took is measured on the clock that nobody can set.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from fieldkit.codec import from_plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, write_json
from fieldkit.process.owned import boot_id, since_boot, start_time

SCHEMA = 1

EVAL = "eval"
"""What an evaluation's segment name begins with; the arm follows."""

BETWEEN = "between"
"""The part of a step in which no phase ran."""

_HELP = "put the file back, or remove it: the step counts without its times"

LOOP_VARIABLE = "GRPO_LOOP"
"""Environment variable naming the loop that runs the phases, whichever it is; unset: by hand."""


@dataclass(frozen=True)
class Segment:
    """One phase's part of a step. `began` and `ended` in Unix seconds; `seconds` by part.

    `ended` ignores any change of the clock since `began`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    phase: str
    loop: str
    began: float
    ended: float
    seconds: dict[str, float]
    up: float | None = None
    """Seconds since the machine's start at `began`; None in older files."""

    @property
    def wall(self) -> float:
        return self.ended - self.began


class Stopwatch:
    """The clock of one phase process. `began`: Unix seconds at which the process was started."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._boot_began = since_boot() - (time.time() - began)
        self.seconds: dict[str, float] = {"startup": time.time() - began}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's seconds under `name`, also when it raises."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - start)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere (in the trainer)."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def segment(self, phase: str) -> Segment:
        """The phase as it stands now."""
        loop = this_loop()
        ended = self.began + since_boot() - self._boot_began
        return Segment(phase, loop, self.began, ended, dict(self.seconds), self._boot_began)


@dataclass(frozen=True)
class StepTimings:
    """A step's segments, in the order in which they ended. since: Unix seconds; what lies before is
    in the wall of the step before. 0: nothing does."""

    step: int
    segments: tuple[Segment, ...] = field(default_factory=tuple)
    since: float = 0.0

    def with_segment(self, segment: Segment) -> StepTimings:
        """These timings with one more segment; a phase that ran again replaces its earlier one."""
        others = tuple(s for s in self.segments if s.phase != segment.phase)
        return replace(self, segments=(*others, segment))

    def after(self, before: StepTimings) -> StepTimings:
        """These timings of a step whose rollout ran beside the training of the step `before`."""
        if not self.segments:
            return self
        first = self.segments[0]
        ends = [s.ended for s in before.segments if s.loop and s.loop == first.loop]
        since = max(ends, default=0.0)
        return replace(self, since=since if since > first.began else 0.0)

    @property
    def wall(self) -> float:
        """Seconds of everything that belongs to the step, its evaluation included."""
        return _wall(self.segments, self.since)

    @property
    def training_wall(self) -> float:
        """Seconds of rollout and training: what one more step costs."""
        trained = tuple(s for s in self.segments if not s.phase.startswith(EVAL))
        return _wall(trained, self.since)

    @property
    def eval_wall(self) -> float:
        """Seconds of the evaluations after the step."""
        return self.wall - self.training_wall

    def eval_of(self, arm: str) -> float | None:
        """Seconds of one arm's evaluation, or None where it was not played after this step."""
        found = [s for s in self.segments if s.phase == eval_segment(arm)]
        return found[0].wall if found else None

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by part, over all phases, and those that passed between the phases of a loop."""
        return self._parts(0.0)

    @property
    def seconds_of_wall(self) -> dict[str, float]:
        """The same without what is in the wall of the step before: of a rollout that ran beside its
        training, each part is counted by the share of the rollout that came after."""
        return self._parts(self.since)

    def _parts(self, since: float) -> dict[str, float]:
        between = _between(self.segments, self.since)
        out = {BETWEEN: between} if between else {}
        for i, segment in enumerate(self.segments):
            share = 1.0 if i or not segment.wall else 1 - _before(segment, since) / segment.wall
            for name, value in segment.seconds.items():
                out[name] = out.get(name, 0.0) + share * value
        return out


def eval_segment(arm: str) -> str:
    """The name of an evaluation's segment."""
    return f"{EVAL} {arm}"


def _wall(segments: tuple[Segment, ...], since: float) -> float:
    """Seconds from the first segment's start, or from `since`, to the last one's end.

    Where the segments belong to different loops (a night that was stopped and resumed, phases typed
    by hand) the time between them does not count, and the segments' own walls are added up.
    """
    before = _before(segments[0], since) if segments else 0.0
    return sum(s.wall for s in segments) - before + _between(segments, since)


def _before(first: Segment, since: float) -> float:
    """Seconds of a step's first segment that lie before `since`."""
    return min(max(0.0, since - first.began), first.wall)


def _between(segments: tuple[Segment, ...], since: float) -> float:
    """Seconds in which one phase of a loop was over and the next had not begun: a process ended,
    the loop looked at what is next, and another was started."""
    loops = {s.loop for s in segments}
    if len(loops) != 1 or "" in loops:
        return 0.0
    late = max(0.0, since - segments[0].ended)  # what lies before it belongs to the step before
    gaps = [_gap(first, second) for first, second in itertools.pairwise(segments)]
    return sum(max(0.0, gap - (late if i == 0 else 0.0)) for i, gap in enumerate(gaps))


def _gap(first: Segment, second: Segment) -> float:
    """Seconds from one phase's end to the next one's start, in one loop, which no restart of the
    machine survives. Older files have only the clock that can be set."""
    if first.up is None or second.up is None:
        return second.began - first.ended
    return second.up - (first.up + first.wall)


def this_loop() -> str:
    """The loop that this phase belongs to; empty for one that was typed. A pid alone may be that of
    every loop of a container that is started again and again."""
    pid = os.environ.get(LOOP_VARIABLE, "")
    return f"{pid}-{start_time(int(pid))}-{boot_id()[:8]}" if pid else ""


def process_began() -> float:
    """Unix seconds at which this process was started."""
    ticks = start_time(os.getpid())
    assert ticks is not None
    return time.time() - (since_boot() - ticks / os.sysconf("SC_CLK_TCK"))


def read_timings(path: Path, step: int) -> StepTimings:
    """timings.json, or an empty one where none is."""
    if not path.is_file():
        return StepTimings(step)
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or value.get("step") != step:
        raise BadInput(f"{path}: not the timings of step {step} in schema {SCHEMA}; {_HELP}")
    segments = value.get("segments")
    if not isinstance(segments, list):
        raise BadInput(f"{path}: segments is not a list; {_HELP}")
    try:
        found = [from_plain(Segment, s, f"{path}: segments.{i}") for i, s in enumerate(segments)]
    except BadInput as e:
        raise BadInput(f"{e}; {_HELP}") from None
    since = value.get("since", 0.0)
    if not isinstance(since, int | float):
        raise BadInput(f"{path}: since is not a number; {_HELP}")
    return StepTimings(step, tuple(found), float(since))


def write_timings(path: Path, timings: StepTimings) -> None:
    """Write timings.json: the wall, the seconds by part, and the segments they come from."""
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "step": timings.step,
        "wall": round(timings.wall, 3),
        "seconds": {k: round(v, 3) for k, v in timings.seconds.items()},
        "segments": [asdict(s) for s in timings.segments],
    }
    if timings.since:
        value["since"] = timings.since
    write_json(path, value)
