"""Predictions for a box: lifecycle, curves, and what to buy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.prepare.capacity.advice import (
    ATTEMPTS,
    WORTH,
    by_attempts,
    by_machines,
    cheap_attempts,
    machines_that_pay,
    next_purchase,
    parts,
    predict,
    words,
)
from scripts.prepare.capacity.box import Box
from scripts.prepare.capacity.model_shape import ModelShape
from scripts.prepare.capacity.step_time import Way
from scripts.prepare.capacity.step_work import StepWork
from tests.scripts.prepare.capacity.round_numbers import EVEN, box, model_folder, shape, work

WAY = Way()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    folder: Path = model_folder(tmp_path_factory.mktemp("model"))
    return shape(folder)


def small(step: StepWork) -> StepWork:
    return replace(step, inputs=1.0, scored=1.0)


def test_what_fits_side_by_side_neither_starts_nor_loads(model: ModelShape) -> None:
    found = predict(work(), model, box(memory_gb=500.0), EVEN, WAY)
    assert found.way == WAY
    assert found.time is not None
    assert (found.time.trainer_load, found.time.engine_restart) == (0, 0)


def test_what_fits_one_after_the_other_starts_anew_and_memory_would_help(
    model: ModelShape,
) -> None:
    wide = predict(small(work()), model, box(memory_gb=500.0), EVEN, WAY)
    assert wide.time is not None
    there = max(wide.room.engine, 8e9) / 1e9
    narrow = box(memory_gb=there * 1.2, start_seconds=100.0)
    found = predict(small(work()), model, narrow, EVEN, WAY)
    assert found.room.fits
    assert found.way == Way(restart=True, load=True)
    assert found.purchases[0].what == "a device with twice the memory"
    assert found.purchases[0].seconds == pytest.approx(wide.time.total)


def test_what_does_not_fit_is_not_predicted(model: ModelShape) -> None:
    found = predict(work(), model, box(memory_gb=4.0), EVEN, WAY)
    assert found.time is None
    assert next_purchase(found).startswith("Buy memory: one device has 4 GB")


@pytest.mark.parametrize(
    ("step", "changes", "largest", "bought"),
    [
        # One attempt after another reads the weights for each token.
        (small(work()), {"memory_gb_s": 10.0}, "decoding", "twice the memory bandwidth"),
        (work(inputs=1e5, scored=1e5), {}, "the gradient", "twice the FLOP/s"),
    ],
)
def test_what_to_buy_follows_the_largest_part(
    model: ModelShape, step: StepWork, changes: dict[str, float], largest: str, bought: str
) -> None:
    found = predict(step, model, box(memory_gb=500.0, **changes), EVEN, WAY)
    said = next_purchase(found)
    assert f"The largest part is {largest}" in said
    assert bought in said
    assert "predicted" in said


def test_nothing_is_bought_for_what_no_device_makes_faster(model: ModelShape) -> None:
    slow = replace(EVEN, fixed=1000.0)
    found = predict(small(work()), model, box(memory_gb=500.0), slow, WAY)
    assert "buy nothing" in next_purchase(found)


def test_purchases_are_no_slower_in_order_and_are_what_they_say(model: ModelShape) -> None:
    here = box(memory_gb=500.0)
    found = predict(work(), model, here, EVEN, WAY)
    seconds = [purchase.seconds for purchase in found.purchases]
    assert seconds == sorted(seconds)
    twice = predict(work(), model, box(memory_gb=500.0, tflops=2.0), EVEN, WAY)
    by_name = {purchase.what: purchase.seconds for purchase in found.purchases}
    assert twice.time is not None
    assert by_name["a device with twice the FLOP/s"] == pytest.approx(twice.time.total)


def test_attempts_are_cheap_as_long_as_the_weights_are_what_is_read(model: ModelShape) -> None:
    """Without training and fixed seconds: 100 tokens an attempt, 8 in flight of 16 at a mean; the
    bend is at 5 in flight, so at 10 attempts, and twice as many take twice as long soon after."""
    bare = replace(EVEN, fixed=0.0)
    step = replace(work(), inputs=0.0, scored=0.0)
    found = cheap_attempts(step, model, box(), bare, WAY)
    assert found == 8
    curve = dict(by_attempts(step, model, box(), bare, WAY))
    assert set(curve) == set(ATTEMPTS)
    assert curve[8].total == pytest.approx(200 * 0.020)
    assert curve[16].total == pytest.approx(200 * 0.032)
    assert curve[32].total == pytest.approx(200 * 0.064)


def test_machines_pay_until_the_longest_attempt_is_what_is_left(model: ModelShape) -> None:
    """64 groups: 1,600 x 16 tokens of 4 ms. One machine takes 102.4 s; the longest attempt alone
    4 s, which 32 machines reach."""
    bare = replace(EVEN, fixed=0.0)
    step = replace(work(inputs=0.0, scored=0.0).times(16), longest=200.0)
    way = Way(seats=256)
    curve = dict(by_machines(step, model, box(), bare, way))
    assert curve[1] == pytest.approx(102.4)
    assert curve[2] == pytest.approx(51.2)
    assert curve[32] == pytest.approx(4.0)
    assert machines_that_pay(step, model, box(), bare, way) == 32
    with_fixed = machines_that_pay(step, model, box(), replace(EVEN, fixed=100.0), way)
    assert with_fixed < 32


def test_a_second_machine_that_saves_less_than_a_tenth_does_not_pay(model: ModelShape) -> None:
    step, slow = work(inputs=1e6, scored=1e6), box(memory_gb=500.0)
    assert machines_that_pay(step, model, slow, EVEN, WAY) == 1
    seconds = dict(by_machines(step, model, slow, EVEN, WAY))
    assert seconds[2] > (1 - WORTH) * seconds[1]


def test_every_part_has_its_words(model: ModelShape) -> None:
    time = predict(work(), model, box(memory_gb=500.0), EVEN, WAY).time
    assert time is not None
    assert tuple(time.parts) == parts()
    assert len(set(map(words, parts()))) == len(parts())


def test_a_box_of_several_devices_is_predicted_as_such(model: ModelShape) -> None:
    def seconds(here: Box) -> float:
        time = predict(work().times(64), model, here, EVEN, Way(seats=1024)).time
        assert time is not None
        return time.total

    assert seconds(box(memory_gb=900.0, devices=8)) < seconds(box(memory_gb=900.0)) / 4
