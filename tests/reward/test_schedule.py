"""A value that changes with the step."""

from __future__ import annotations

import pytest

from fieldkit.errors import BadInput
from reward.schedule import check_points, value_at

POINTS = [[5, 0.0], [9, 0.4], [10, 0.2]]


@pytest.mark.parametrize(
    ("step", "value"), [(1, 0.0), (5, 0.0), (6, 0.1), (8, 0.3), (9, 0.4), (10, 0.2), (99, 0.2)]
)
def test_it_is_linear_between_the_points_and_constant_outside(step: int, value: float) -> None:
    assert value_at(POINTS, step) == pytest.approx(value)


def test_one_point_is_a_constant() -> None:
    assert [value_at([[3, 0.5]], step) for step in (1, 3, 7)] == [0.5] * 3


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ([], "give pairs of a step"),
        ([[1, 0.0, 2.0]], "give pairs of a step"),
        ([[0, 0.1]], "0 is not the number of a step"),
        ([[1.5, 0.1]], r"1\.5 is not the number of a step"),
        ([[1, -0.1]], r"the value at step 1 is -0\.1"),
        ([[1, 0.1], [1, 0.2]], "step 1 comes after step 1"),
        ([[4, 0.1], [2, 0.2]], "step 2 comes after step 4"),
    ],
)
def test_other_points_are_refused_by_the_name_of_their_key(
    points: list[list[float]], told: str
) -> None:
    with pytest.raises(BadInput, match=f"^the key: .*{told}"):
        check_points(points, "the key")
