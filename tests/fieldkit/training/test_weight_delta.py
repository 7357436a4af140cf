"""The delta on numbers worked out by hand, in float32 and as a bfloat16 server sees it."""

from __future__ import annotations

import math

import pytest
import torch

from fieldkit.errors import BadInput
from fieldkit.training.weight_delta import weight_delta


def test_l2_and_largest_step_over_all_tensors() -> None:
    before = {"a": torch.zeros(2), "b": torch.zeros(1, 1)}
    delta = weight_delta(
        before, {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[-4.0]])}, torch.float
    )
    assert delta.l2 == 5.0
    assert delta.max_abs == 4.0
    assert delta.n_elements == 3


def test_a_step_below_bfloat16_resolution_is_seen_to_vanish() -> None:
    # bfloat16 has 8 significant bits: from 1.0 the next value up is 1 + 2^-7.
    before = {"a": torch.ones(4)}
    moved = torch.tensor([1 + 2**-10, 1 + 2**-10, 1 + 2**-10, 1 + 2**-7])
    delta = weight_delta(before, {"a": moved}, torch.bfloat16)
    assert delta.l2 == pytest.approx(math.sqrt(3 * 2**-20 + 2**-14))
    assert delta.served_l2 == 2**-7
    assert delta.served_max_abs == 2**-7
    assert delta.served_changed == 0.25


def test_in_float32_everything_survives() -> None:
    before = {"a": torch.ones(4)}
    delta = weight_delta(before, {"a": torch.ones(4) + 2**-20}, torch.float32)
    assert delta.served_l2 == delta.l2 > 0
    assert delta.served_changed == 1.0


def test_no_move_is_no_delta() -> None:
    before = {"a": torch.ones(4)}
    delta = weight_delta(before, {"a": torch.ones(4)}, torch.bfloat16)
    assert (delta.l2, delta.max_abs, delta.served_changed) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({}, "a is missing"),
        ({"a": torch.zeros(3), "b": torch.zeros(1)}, "b does not belong there"),
        ({"a": torch.zeros(2)}, r"a has shape \[2\], \[3\] is needed"),
        ({"a": torch.tensor([0.0, torch.nan, 0.0])}, "a holds NaN"),
    ],
)
def test_tensors_that_do_not_compare_are_named(now: dict[str, torch.Tensor], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        weight_delta({"a": torch.zeros(3)}, now, torch.float32)
