"""A run's steps elsewhere."""

from __future__ import annotations

import pytest

from scripts.prepare.capacity.box import named_box
from scripts.prepare.capacity.elsewhere import of_default, of_run
from scripts.prepare.capacity.model_shape import named_shape
from scripts.run.folder import open_run
from scripts.run.reader import RunReader

NIGHT = RunReader(open_run("first-night"))


def test_a_runs_own_model_adapter_and_seconds() -> None:
    found = of_run(NIGHT)
    named = named_shape("SmolLM2-135M-Instruct")
    assert found.shape.parameters == named.parameters == 134_479_872
    assert found.way.lora_parameters == 921_600
    assert list(found.works) == list(found.measured) == ["step 1", "steps 16 to 20"]
    step = found.measured["step 1"]
    assert step["rollout"] == pytest.approx(NIGHT.step(1).seconds["rollout"])
    assert sum(step.values()) == pytest.approx(NIGHT.step(1).seconds["wall"], rel=0.01)


def test_another_model_gets_a_lora_on_all_its_layers() -> None:
    found = of_run(NIGHT, "Qwen2.5-7B-Instruct")
    assert found.way.lora_parameters == 40_370_176
    assert found.works == of_run(NIGHT).works


def test_a_larger_model_and_more_attempts_take_longer() -> None:
    small, large = of_default(), of_default("Qwen2.5-7B-Instruct")
    spark = named_box("spark")
    times = [
        prediction.time.total
        for found, attempts in ((small, None), (large, None), (large, 512))
        if (prediction := found.on(spark, attempts)["step 1"]).time is not None
    ]
    assert len(times) == 3
    assert times == sorted(times)


def test_as_many_attempts_as_were_played_change_nothing() -> None:
    found = of_default()
    spark = named_box("spark")
    assert found.on(spark, 32)["step 1"].time == found.on(spark)["step 1"].time


def test_every_attempt_has_a_seat_where_their_number_is_given() -> None:
    found, box = of_default(), named_box("h100")
    seats = [found.cases(box, n)["step 1"].way.seats for n in (None, 500, 8)]
    assert seats == [64, 500, 64]


def test_the_machine_that_was_fitted_is_predicted_near_its_own_seconds() -> None:
    found = of_default()
    for name, prediction in found.on(named_box("epyc-2")).items():
        assert prediction.time is not None
        taken = sum(v for part, v in found.measured[name].items() if part != "load")
        assert prediction.time.total == pytest.approx(taken, rel=0.15)
