"""Whether a model fits a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.prepare.capacity.box import named_box
from scripts.prepare.capacity.device_memory import (
    LORA_BYTES,
    PROCESS_BYTES,
    TRAINER_BYTES,
    Room,
    room,
)
from scripts.prepare.capacity.model_shape import DEFAULT_TARGETS, ModelShape, named_shape
from tests.scripts.prepare.capacity.round_numbers import (
    box,
    model_folder,
    shape,
    smallest_trainer,
    work,
)
from trainer.footprint.step_bytes import activation_bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    folder: Path = model_folder(tmp_path_factory.mktemp("model"))
    return shape(folder)


def test_an_engine_holds_weights_and_the_cache_of_all_in_flight(model: ModelShape) -> None:
    """2 GB, and 16 attempts of 1,000 tokens of 200,000 bytes."""
    found = room(work(context=1000.0), model, box(), seats=64, lora_parameters=0)
    assert found.engine == pytest.approx(2e9 + 3.2e9 + PROCESS_BYTES)


def test_an_engine_has_a_cache_for_its_seats_and_its_share_of_the_attempts(
    model: ModelShape,
) -> None:
    one = room(work(context=1000.0), model, box(), seats=2, lora_parameters=0)
    assert one.engine == pytest.approx(2e9 + 0.4e9 + PROCESS_BYTES)
    two = room(work(context=1000.0), model, box(devices=2), seats=64, lora_parameters=0)
    assert two.engine == pytest.approx(2e9 + 1.6e9 + PROCESS_BYTES)


def test_a_trainer_holds_weights_lora_and_the_largest_micro_batch_that_fits(
    model: ModelShape,
) -> None:
    each = activation_bytes(model.folder, 2, False, targets=DEFAULT_TARGETS)
    large = room(work(), model, box(memory_gb=1000.0), seats=64, lora_parameters=10**6)
    assert large.tokens == 4096
    assert large.trainer == pytest.approx(2e9 + LORA_BYTES * 1e6 + TRAINER_BYTES + 4096 * each)
    there = (large.engine + large.trainer - 2000 * each) / 1e9
    smaller = room(work(), model, box(memory_gb=there), seats=64, lora_parameters=10**6)
    assert (smaller.tokens, smaller.side_by_side) == (2048, True)


def test_attempts_wait_for_a_seat_where_their_cache_is_too_large(model: ModelShape) -> None:
    """A cache of 1 GB an attempt, of which 6.5 fit beside the trainer; of 16 attempts 6 at once."""
    step = work(context=5000.0)
    wanted = room(step, model, box(memory_gb=900.0), seats=64, lora_parameters=0)
    assert (wanted.seats, wanted.tokens) == (16, 4096)
    trainer = smallest_trainer(model, 5000)
    there = (2e9 + PROCESS_BYTES + 6.5e9 + trainer) / 1e9
    found = room(step, model, box(memory_gb=there), seats=64, lora_parameters=0)
    assert found.side_by_side
    assert (found.seats, found.tokens) == (6, 1024)


def test_no_fewer_than_a_group_are_played_at_once(model: ModelShape) -> None:
    """Beside the trainer there is room for three of them; so they come one after the other."""
    step = work(context=5000.0)
    trainer = smallest_trainer(model, 5000)
    there = (2e9 + PROCESS_BYTES + 3.5e9 + trainer) / 1e9
    found = room(step, model, box(memory_gb=there), seats=64, lora_parameters=0)
    assert found.fits
    assert not found.side_by_side
    assert found.seats >= 4


def test_activations_are_made_again_only_where_nothing_else_fits(model: ModelShape) -> None:
    kept, made_again = (smallest_trainer(model, checkpointing=c) for c in (False, True))
    for there, checkpointing, fits in (
        (kept + 1e6, False, True),
        (kept - 1e6, True, True),
        (made_again - 1e6, True, False),
    ):
        found = room(work(), model, box(memory_gb=there / 1e9), seats=64, lora_parameters=0)
        assert (found.checkpointing, found.fits) == (checkpointing, fits)
    assert found.trainer == pytest.approx(made_again), "the least that it needs"


def test_side_by_side_one_after_the_other_and_not_at_all() -> None:
    assert Room(40, 50, 100, 64, 1024).side_by_side
    one_by_one = Room(60, 50, 100, 64, 1024)
    assert one_by_one.fits
    assert not one_by_one.side_by_side
    assert not Room(60, 101, 100, 64, 1024).fits


def test_the_articles_model_fits_a_spark_as_it_did_there() -> None:
    """Side by side in 128 GB, and one after the other in the 25 GB of two cores."""
    qwen = named_shape("Qwen2.5-7B-Instruct")
    night = work(context=800.0, episodes=32.0)
    spark, epyc = (
        room(night, qwen, named_box(name), seats=64, lora_parameters=40_370_176)
        for name in ("spark", "epyc-2")
    )
    assert spark.side_by_side
    assert epyc.fits
    assert not epyc.side_by_side
