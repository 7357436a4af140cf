"""Formats numbers for people, in one way per kind of number on every page.

Differences of rates are in points (hundredths), rates are in percent, and a minus is a minus sign.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fieldkit.eval.stats import Estimate, Interval, with_width

MINUS = "−"


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign; a number that rounds to zero has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else MINUS) + text


def plain(value: float, digits: int = 1) -> str:
    """A number without a plus, with a real minus sign."""
    return signed(value, digits).removeprefix("+")


def percent(rate: float) -> str:
    """A rate in [0, 1] as percent."""
    return f"{100 * rate:.1f} %"


def points(difference: float) -> str:
    """A difference of rates in points, with its sign."""
    return signed(100 * difference)


def turns(value: float, sign: bool = False) -> str:
    """A number of turns (or tokens), with one decimal."""
    return signed(value) if sign else plain(value)


def span(interval: Interval, as_points: bool = True, joined: str = " to ", digits: int = 1) -> str:
    """Both ends of an interval, with signs."""
    scale = 100 if as_points else 1
    ends = (signed(scale * end, digits) for end in (interval.low, interval.high))
    return joined.join(ends)


ALIKE = "on each task"
"""After a difference that is the same on each task: its bootstrap interval has no width, for all
resamples are alike, which would read as certainty about other tasks."""


def is_alike(value: Estimate) -> bool:
    """Whether all tasks have the same value, so that the interval has no width."""
    return value.interval is not None and with_width(value).interval is None


def estimate(value: Estimate, as_points: bool = True, digits: int = 1) -> str:
    """A difference with its interval in brackets."""
    number = signed(100 * value.value if as_points else value.value, digits)
    if value.interval is None:
        return number
    within = ALIKE if is_alike(value) else span(value.interval, as_points, digits=digits)
    return f"{number} [{within}]"


def with_interval(value: Estimate, as_points: bool = True) -> str:
    """A difference with its interval, as in a sentence."""
    number = f"{points(value.value)} points" if as_points else turns(value.value, sign=True)
    if value.interval is None:
        return number
    if is_alike(value):
        return f"{number} {ALIKE}"
    return f"{number}, 95 % interval {span(value.interval, as_points)}"


def p_value(p: float, equals: bool = False) -> str:
    """A p-value with two or three decimals; `<0.001` below that."""
    if p < 0.001:
        return "< 0.001" if equals else "<0.001"
    text = f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
    return f"= {text}" if equals else text


def clock(at: float) -> str:
    """A Unix time as local hour and minute."""
    return time.strftime("%H:%M", time.localtime(at))


def duration(seconds: float) -> str:
    """Seconds as text, rounded to the digits that matter."""
    if seconds < 90:
        return f"{seconds:.1f} s" if 0.05 <= seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def listed(names: Sequence[str]) -> str:
    """Two or more names as they stand in a sentence: a, b and c."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def counted(n: int, noun: str) -> str:
    """A count with its noun, which takes a plural s."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def share(count: int, total: int) -> str:
    """A count out of a total, with its percentage."""
    return f"{count}/{total} ({percent(count / total)})"
