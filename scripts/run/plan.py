"""Computes how many steps fit into the night at the measured speed.

Steps get faster as the policy learns to stop, and a machine's speed can halve from one day to the
next, so a fixed number of steps would be wrong. The plan is a pure function of measured times; the
loop computes it again after every step.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RECENT = 3
"""The next step is expected to take as long as the median of this many last ones: so one during
which the machine was suspended, for hours maybe, does not count. Over the rest of a night the mean
of two was further off in six of the seven committed runs."""

BASE_TIMES = 5.0
"""How much longer the base model plays than the starting adapter, at most: its replies are longer.
The default model took 3.8 times as long on 158 tasks and 5.2 times on 48 (780 and 119 tokens a
task)."""

REFERENCE_SHARE = 0.43
"""Of a gradient's seconds, what the reference's logprobs take: 525 of 1,214 ids a second
(`make bench` at db06833). Only for the step after a first one, which is spared them."""

PAGE_SECONDS = 20.0
"""What is left of a night with a deadline for the tables and the page."""


@dataclass(frozen=True)
class Measured:
    """Seconds that were measured so far; the plan depends on nothing else.

    step_seconds: wall of every finished step, step 1 first; or of the last ones.
    other_seconds: wall of everything else that is over: the start phase and the evaluations.
    final_eval_seconds: what evaluating the newest adapter would take, 0 where that is already done.
    eval_seconds: the same for an adapter to come; 0 before anything was evaluated.
    start_eval_seconds: what evaluating the starting adapter took; 0 before it was evaluated.
    earlier_steps, earlier_seconds: the steps before those of step_seconds, and their wall.
    spared_seconds: what the steps of step_seconds were spared and those to come are not.
    """

    step_seconds: tuple[float, ...]
    other_seconds: float
    final_eval_seconds: float
    eval_seconds: float = 0.0
    start_eval_seconds: float = 0.0
    earlier_steps: int = 0
    earlier_seconds: float = 0.0
    spared_seconds: float = 0.0

    @property
    def done(self) -> int:
        """How many steps are finished."""
        return self.earlier_steps + len(self.step_seconds)

    @property
    def base_seconds(self) -> float:
        """What the base model's arm is expected to take."""
        return BASE_TIMES * self.start_eval_seconds

    @property
    def next_step_seconds(self) -> float:
        """What the next step is expected to take."""
        return expected_step_seconds(self.step_seconds) + self.spared_seconds

    @property
    def gone(self) -> float:
        """Seconds of the night that are over."""
        return sum(self.step_seconds, start=self.earlier_seconds) + self.other_seconds


def planned_steps(
    steps: int | Literal["auto"],
    minutes: float,
    measured: Measured,
    *,
    eval_every: int = 0,
    deadline_in: float | None = None,
) -> int:
    """Steps in all, those already done included.

    A fixed number is returned as it is. "auto": at least one step, then one more for as long as the
    time gone by, a further step and the last evaluation fit into `minutes`. deadline_in: seconds
    from now by which everything has to be done; it takes the place of `minutes`, leaves time for
    the page, and cuts a fixed number too. Evaluations on the way, one in `eval_every` steps, count
    as part of the steps.
    """
    if steps != "auto" and deadline_in is None:
        return steps
    done = measured.done
    most = 10**9 if steps == "auto" else steps
    if done == 0:
        return min(1, most)
    left = minutes * 60 - measured.gone if deadline_in is None else deadline_in - PAGE_SECONDS
    expected = measured.next_step_seconds
    if eval_every:
        expected += measured.eval_seconds / eval_every
    # A further step has to be evaluated in the end, also where the newest one has been already.
    last_eval = max(measured.final_eval_seconds, measured.eval_seconds)
    fits = int((left - last_eval) // expected)
    return max(done, min(most, done + fits))


def seconds_allotted(
    steps: int | Literal["auto"],
    minutes: float,
    measured: Measured,
    *,
    deadline_in: float | None = None,
) -> float | None:
    """Seconds until the night has to be over, by the limits it was given; None where it has a
    number of steps and no limit in time. All that is known before a step was measured."""
    if deadline_in is not None:
        return max(0.0, deadline_in)
    if steps != "auto":
        return None
    return max(0.0, minutes * 60 - measured.gone)


def has_time_for_base(
    steps: int | Literal["auto"],
    minutes: float,
    measured: Measured,
    *,
    deadline_in: float | None = None,
    before: float = 0.0,
) -> bool:
    """Whether the base model's arm fits into the rest of a night, once it has no step left to take.

    It takes `BASE_TIMES` what the starting adapter's arm took. before: seconds of what is still to
    be done first. A night with a number of steps and no limit in time has time.
    """
    left = seconds_allotted(steps, minutes, measured, deadline_in=deadline_in)
    return left is None or left - before - PAGE_SECONDS >= measured.base_seconds


def expected_step_seconds(step_seconds: Sequence[float]) -> float:
    """Seconds the next step will take: the median of the last few."""
    expected = statistics.median(step_seconds[-RECENT:])
    return max(expected, 1e-3)  # a step of no time at all would fit for ever


def scaled_eval_seconds(seconds: float, turns_then: float, turns_now: float) -> float:
    """An earlier evaluation's seconds at today's episode length: turns cost, tasks do not."""
    return seconds * turns_now / turns_then if turns_then > 0 else seconds


def seconds_left(steps: int, measured: Measured, eval_every: int = 0) -> float | None:
    """Seconds until step `steps` is finished and evaluated, with the evaluations on the way, one in
    `eval_every` steps; None before a step was measured."""
    if not measured.step_seconds:
        return None
    done = measured.done
    if done >= steps:
        return measured.final_eval_seconds
    first = done if measured.final_eval_seconds else done + 1  # the newest one may be due itself
    on_the_way = sum(n % eval_every == 0 for n in range(first, steps)) if eval_every else 0
    evaluation = max(measured.final_eval_seconds, measured.eval_seconds)
    training = (steps - done) * measured.next_step_seconds
    return training + (on_the_way + 1) * evaluation
