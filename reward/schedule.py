"""A number that changes with the step of a run: linear between given points, constant outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from fieldkit.errors import BadInput

Points = Sequence[Sequence[float]]
"""Pairs of a step, counted from 1, and the value there, by rising step."""


def check_points(points: Points, key: str) -> None:
    """Raise `BadInput` that names `key` unless these are points with values of at least 0."""
    example = f"as in {key} = [[1, 0.0], [20, 0.4]]"
    if not points or any(len(point) != 2 for point in points):
        raise BadInput(f"{key}: give pairs of a step and the value there, {example}")
    for step, value in points:
        if step < 1 or not float(step).is_integer():
            raise BadInput(f"{key}: {step:g} is not the number of a step, {example}")
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"{key}: the value at step {step:g} is {value:g}; it must be at least 0")
    for (step, _), (later, _) in pairwise(points):
        if later <= step:
            raise BadInput(f"{key}: step {later:g} comes after step {step:g}; steps must rise")


def value_at(points: Points, step: int) -> float:
    """The value at `step`."""
    if step <= points[0][0]:
        return points[0][1]
    for (a, at_a), (b, at_b) in pairwise(points):
        if step <= b:
            return at_a + (at_b - at_a) * (step - a) / (b - a)
    return points[-1][1]
