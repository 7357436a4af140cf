"""Predictions for a box: lifecycle, curves, and what to buy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.prepare.capacity.advice import (
    ATTEMPTS,
    MACHINES,
    TO_BUY,
    WORDS,
    WORTH,
    Case,
    next_purchase,
    predict,
)
from scripts.prepare.capacity.box import Box
from scripts.prepare.capacity.model_shape import ModelShape
from scripts.prepare.capacity.step_time import Efficiency, StepTime, Way
from scripts.prepare.capacity.step_work import StepWork
from tests.scripts.prepare.capacity.round_numbers import (
    EVEN,
    box,
    model_folder,
    shape,
    smallest_trainer,
    work,
)

BARE = replace(EVEN, fixed=0.0)
ROOMY = box(memory_gb=5000.0)
UNTRAINED = work(inputs=0.0, scored=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    folder: Path = model_folder(tmp_path_factory.mktemp("model"))
    return shape(folder)


def case(
    model: ModelShape,
    step: StepWork,
    here: Box = ROOMY,
    efficiency: Efficiency = EVEN,
    way: Way = Way(),  # noqa: B008
) -> Case:
    return Case(step, model, here, efficiency, way)


def timed(found: Case) -> StepTime:
    time = found.time()
    assert time is not None
    return time


def test_what_fits_side_by_side_neither_starts_nor_loads(model: ModelShape) -> None:
    time = timed(case(model, work()))
    assert (time.trainer_load, time.engine_restart) == (0, 0)


def test_a_gradient_takes_half_as_long_again_where_only_that_makes_it_fit(
    model: ModelShape,
) -> None:
    """But for a box whose share was measured so."""
    trained = work(inputs=1e6, scored=1e6)
    tight = smallest_trainer(model) / 1e9 - 0.1
    for measured, times in ((None, 1.5), (0.3, 1.0)):
        wide, narrow = (
            case(model, trained, box(memory_gb=there, gradient_share=measured))
            for there in (900.0, tight)
        )
        assert (wide.room.checkpointing, narrow.room.checkpointing) == (False, True)
        assert timed(narrow).gradient == pytest.approx(times * timed(wide).gradient)
        assert timed(narrow).reference == timed(wide).reference


def test_what_fits_one_after_the_other_starts_anew_and_memory_would_help(
    model: ModelShape,
) -> None:
    wide = case(model, UNTRAINED, box(memory_gb=5000.0, start_seconds=100.0))
    there = 1.1 * max(wide.room.engine, smallest_trainer(model))
    narrow = case(model, UNTRAINED, box(memory_gb=there / 1e9, start_seconds=100.0))
    assert narrow.room.fits
    time = timed(narrow)
    assert time.engine_restart == pytest.approx(102)
    assert time.trainer_load == pytest.approx(8)
    best = narrow.purchases()[0]
    assert best.what == "a device with twice the memory"
    assert best.seconds == pytest.approx(timed(wide).total)


def test_what_does_not_fit_is_not_predicted(model: ModelShape) -> None:
    found = predict(case(model, work(), box(memory_gb=4.0)))
    assert found.time is None
    assert next_purchase(found).startswith("Buy memory: one device has 4 GB")


@pytest.mark.parametrize(
    ("step", "memory_gb_s", "largest", "bought"),
    [
        (UNTRAINED, 10.0, "decoding", "twice the memory bandwidth"),
        (work(inputs=1e5, scored=1e5), 100.0, "the gradient", "twice the FLOP/s"),
    ],
)
def test_what_to_buy_follows_the_largest_part(
    model: ModelShape, step: StepWork, memory_gb_s: float, largest: str, bought: str
) -> None:
    here = box(memory_gb=5000.0, memory_gb_s=memory_gb_s)
    said = next_purchase(predict(case(model, step, here)))
    assert f"The largest part is {largest}" in said
    assert bought in said
    assert "predicted" in said


def test_nothing_is_bought_for_what_no_device_makes_faster(model: ModelShape) -> None:
    found = predict(case(model, UNTRAINED, efficiency=replace(EVEN, fixed=1000.0)))
    assert "buy nothing" in next_purchase(found)


def test_purchases_are_in_order_and_are_what_they_say(model: ModelShape) -> None:
    found = case(model, work()).purchases()
    seconds = [purchase.seconds for purchase in found]
    assert seconds == sorted(seconds)
    assert {purchase.what for purchase in found} == set(TO_BUY.values())
    by_name = {purchase.what: purchase.seconds for purchase in found}
    faster = case(model, work(), box(memory_gb=5000.0, tflops=2.0))
    assert by_name["a device with twice the FLOP/s"] == pytest.approx(timed(faster).total)


def test_attempts_are_cheap_as_long_as_reading_the_weights_takes_longer(
    model: ModelShape,
) -> None:
    """Half of the attempts are in flight at a mean, and from 5 in flight products take longer:
    10 attempts. So 8 take as long as one, and twice as many nearly twice as long soon after."""
    bare = case(model, UNTRAINED, efficiency=BARE)
    curve = dict(bare.by_attempts())
    assert tuple(curve) == ATTEMPTS
    assert curve[8].total == pytest.approx(200 * 0.020)
    assert curve[16].total == pytest.approx(200 * 0.032)
    assert curve[32].total == pytest.approx(200 * 0.064)
    assert bare.cheap_attempts() == 8


def test_machines_pay_until_the_longest_attempt_is_what_is_left(model: ModelShape) -> None:
    """64 groups: 25,600 tokens of 4 ms. One machine takes 102.4 s; the longest attempt alone 4 s,
    which 32 machines reach."""
    bare = case(model, UNTRAINED.times(16), efficiency=BARE, way=Way(seats=256))
    curve = dict(bare.by_machines())
    assert tuple(curve) == MACHINES
    assert curve[1] == pytest.approx(102.4)
    assert curve[2] == pytest.approx(51.2)
    assert curve[32] == pytest.approx(4.0)
    assert bare.machines_that_pay() == 32
    assert replace(bare, efficiency=replace(EVEN, fixed=100.0)).machines_that_pay() < 32


def test_a_second_machine_that_saves_less_than_a_tenth_does_not_pay(model: ModelShape) -> None:
    trained = case(model, work(inputs=1e6, scored=1e6))
    assert trained.machines_that_pay() == 1
    seconds = dict(trained.by_machines())
    assert seconds[2] > (1 - WORTH) * seconds[1]


def test_fewer_seats_than_attempts_take_longer(model: ModelShape) -> None:
    """A cache that fits for some of the attempts only."""
    step = replace(UNTRAINED, context=5000.0).times(8)
    way = Way(seats=128)
    wide = case(model, step, way=way)
    there = smallest_trainer(model, 5000) + 30e9
    narrow = case(model, step, box(memory_gb=there / 1e9), way=way)
    assert wide.room.seats == 128
    assert 4 <= narrow.room.seats < 128
    assert narrow.room.side_by_side
    assert timed(narrow).decode > timed(wide).decode


def test_every_part_has_its_words(model: ModelShape) -> None:
    assert tuple(timed(case(model, work())).parts) == tuple(WORDS)
    assert len(set(WORDS.values())) == len(WORDS)


def test_eight_devices_are_several_times_as_fast_with_enough_to_do(model: ModelShape) -> None:
    large, way = work().times(64), Way(seats=1024)
    one = case(model, large, way=way)
    eight = case(model, large, box(memory_gb=5000.0, devices=8), way=way)
    assert timed(eight).total < timed(one).total / 4


def test_the_largest_box_that_can_be_written_is_still_doubled(model: ModelShape) -> None:
    largest = box(memory_gb=1e9, tflops=1e9, devices=100_000, machines=100_000)
    assert len(case(model, work(), largest).purchases()) == len(TO_BUY)
