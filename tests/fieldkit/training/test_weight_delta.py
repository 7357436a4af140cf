"""The delta on numbers worked out by hand, in float32 and as a bfloat16 server sees it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from fieldkit.errors import BadInput
from fieldkit.training.weight_delta import WeightDeltaTracker, weight_delta
from tests.fieldkit.peft_models import ARCHITECTURES, move, peft_model, values


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


def linear(*values: float) -> torch.nn.Linear:
    model = torch.nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tracker_sees_what_a_plain_loop_sees(architecture: str) -> None:
    model = peft_model(architecture)
    tracker = WeightDeltaTracker(model)
    assert tracker.delta() == (0.0, 0.0)
    before = values(model)
    move(model)
    steps = {n: p.double() - before[n].double() for n, p in model.named_parameters()}
    whole = torch.cat([step.flatten() for step in steps.values()])
    l2, max_abs = tracker.delta()
    assert l2 == pytest.approx(whole.norm().item(), rel=1e-12)
    assert max_abs == whole.abs().max().item()
    layers = tracker.per_layer()
    assert len(layers) == len(tracker) == sum(p.requires_grad for p in model.parameters())
    for name, (layer_l2, layer_max) in layers.items():
        assert layer_l2 == pytest.approx(steps[name].norm().item(), rel=1e-12)
        assert layer_max == steps[name].abs().max().item()


def test_the_served_delta_is_that_of_its_two_sets_of_tensors() -> None:
    model = peft_model()
    tracker = WeightDeltaTracker(model)
    before = values(model)
    move(model, 1e-3)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    expected = weight_delta({n: before[n] for n in trained}, trained, torch.bfloat16)
    assert tracker.served(torch.bfloat16) == expected
    assert (expected.l2, expected.max_abs) == tracker.delta()
    assert 0 < dataclasses.asdict(expected)["served_changed"] < 1


def test_after_a_rebase_the_delta_starts_again() -> None:
    model = linear(0.0, 0.0)
    tracker = WeightDeltaTracker(model)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
    assert tracker.delta() == (5.0, 4.0)
    assert tracker.before["weight"].tolist() == [[0.0, 0.0]]
    tracker.rebase()
    assert tracker.delta() == (0.0, 0.0)


def test_a_frozen_model_has_nothing_to_follow() -> None:
    tracker = WeightDeltaTracker(linear(1.0).requires_grad_(False))
    assert (len(tracker), tracker.delta(), tracker.per_layer()) == (0, (0.0, 0.0), {})


def test_a_move_before_the_model_was_frozen_still_counts() -> None:
    model = linear(1.0)
    tracker = WeightDeltaTracker(model)
    with torch.no_grad():
        model.weight.add_(2.0)
    model.requires_grad_(False)
    assert tracker.delta() == (2.0, 2.0)


def test_a_step_of_bfloat16_weights_is_measured_without_rounding_it() -> None:
    model = linear(256.0).bfloat16()
    tracker = WeightDeltaTracker(model)
    with torch.no_grad():
        model.weight.fill_(-3.0)
    assert tracker.delta() == (259.0, 259.0)  # in bfloat16 the difference would be 260


def test_what_cannot_be_compared_is_named() -> None:
    model: Any = torch.nn.Sequential(linear(1.0), linear(1.0).requires_grad_(False))
    tracker = WeightDeltaTracker(model)
    model[1].requires_grad_(True)
    with pytest.raises(BadInput, match=r"1\.weight is trained since; call rebase\(\)"):
        tracker.delta()
    tracker.rebase()
    with torch.no_grad():
        model[1].weight.fill_(torch.nan)
    with pytest.raises(BadInput, match=r"1\.weight holds NaN"):
        tracker.delta()
    del model[1]
    with pytest.raises(BadInput, match=r"1\.weight is missing"):
        tracker.per_layer()
