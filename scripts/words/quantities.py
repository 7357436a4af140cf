"""How numbers are written for people: one way for each kind, the same on every page.

Differences of rates are in points (hundredths), rates in percent, and a minus is a minus sign.
"""

from __future__ import annotations

import time

from fieldkit.eval.stats import Estimate, Interval

MINUS = "−"


def signed(value: float, digits: int = 1) -> str:
    """With its sign; what rounds to zero has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else MINUS) + text


def plain(value: float, digits: int = 1) -> str:
    """Without a plus, with a real minus."""
    return signed(value, digits).removeprefix("+")


def percent(rate: float) -> str:
    """A rate in [0, 1] as percent."""
    return f"{100 * rate:.1f} %"


def points(difference: float) -> str:
    """A difference of rates in points, with its sign."""
    return signed(100 * difference)


def turns(value: float, sign: bool = False) -> str:
    """A number of turns (or tokens), one digit."""
    return signed(value) if sign else plain(value)


def span(interval: Interval, as_points: bool = True) -> str:
    """Both ends of an interval, with their signs."""
    scale = 100 if as_points else 1
    return f"{signed(scale * interval.low)} to {signed(scale * interval.high)}"


def estimate(value: Estimate, as_points: bool = True) -> str:
    """A difference with its interval in brackets."""
    number = points(value.value) if as_points else signed(value.value)
    return f"{number} [{span(value.interval, as_points)}]" if value.interval else number


def p_value(p: float, equals: bool = False) -> str:
    """A p-value with two digits that count, `<0.001` below that."""
    if p < 0.001:
        return "< 0.001" if equals else "<0.001"
    text = f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
    return f"= {text}" if equals else text


def clock(at: float) -> str:
    """A Unix time as the hour and minute that a clock here shows."""
    return time.strftime("%H:%M", time.localtime(at))


def counted(n: int, noun: str) -> str:
    """A count with its noun, which takes an s."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def share(count: int, total: int) -> str:
    """A count of a total with its percentage."""
    return f"{count}/{total} ({percent(count / total)})"
