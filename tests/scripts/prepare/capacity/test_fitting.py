"""The fit, on steps of which the answer is known, and on those that were measured."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from scripts.prepare.capacity.box import named_box
from scripts.prepare.capacity.fitting import fit, left_out, tried_on
from scripts.prepare.capacity.measured import MeasuredRun, MeasuredStep, measured_runs
from scripts.prepare.capacity.step_time import Efficiency, Way, step_time
from scripts.prepare.capacity.step_work import StepWork

TRUE = Efficiency(
    engine=0.4,
    reference=0.7,
    gradient=0.6,
    canary_tokens=2000.0,
    fixed=3.0,
    trainer_seconds=6.0,
)
ITERATION_MS = 30.0


def made(n: int, slow: float = 1.0) -> MeasuredStep:
    """A step as the true efficiencies would have it, `slow` times as long."""
    rng = random.Random(n)
    work = StepWork(
        episodes=32.0,
        group_size=4,
        turns=0.0,
        sampled=rng.uniform(1500, 4000),
        read=rng.uniform(3000, 8000),
        longest=rng.uniform(80, 220),
        context=300.0,
        inputs=rng.uniform(5000, 12_000),
        scored=rng.uniform(1500, 4000),
        is_exact=True,
    )
    run = MeasuredRun("made", "", "SmolLM2-135M-Instruct", "epyc-2", 64, ())
    box = replace(named_box("epyc-2"), iteration_ms=ITERATION_MS)
    time = step_time(work, run.shape, box, TRUE, Way(load=True))
    return MeasuredStep(
        n,
        work,
        rollout=slow * time.rollout,
        reference=slow * time.reference,
        gradient=slow * time.gradient,
        canary=slow * time.canary,
        fixed=slow * time.fixed,
        trainer_load=slow * time.trainer_load,
    )


def night(*steps: MeasuredStep) -> MeasuredRun:
    return MeasuredRun("made", "", "SmolLM2-135M-Instruct", "epyc-2", 64, steps)


def close(found: Efficiency, to: Efficiency) -> bool:
    return vars(found) == pytest.approx(vars(to), rel=1e-6)


def test_the_efficiencies_that_made_the_steps_are_found() -> None:
    found = fit([night(*map(made, range(12)))])
    assert close(found.efficiency, TRUE)
    assert found.iteration_ms == pytest.approx(ITERATION_MS)


def test_steps_of_a_machine_that_was_busy_change_nothing() -> None:
    busy = [made(n, slow=5.0 if n in (2, 7, 9) else 1.0) for n in range(12)]
    found = fit([night(*busy)])
    assert close(found.efficiency, TRUE)
    assert found.iteration_ms == pytest.approx(ITERATION_MS)


def test_a_step_that_is_left_out_is_predicted_from_the_others() -> None:
    errors = left_out([night(*map(made, range(8)))])
    assert errors["step"].n == 8
    assert max(error.worst for error in errors.values()) < 1e-6


def test_the_error_of_a_slow_step_is_told() -> None:
    """Twice as slow as predicted: half of what was measured."""
    runs = [night(*[made(n, slow=2.0 if n == 3 else 1.0) for n in range(9)])]
    errors = left_out(runs)
    assert errors["gradient"].worst == pytest.approx(0.5)
    assert errors["gradient"].median == pytest.approx(0, abs=1e-9)
    assert errors["gradient"].bias == pytest.approx(-0.5 / 9)


def test_a_limit_that_was_measured_with_the_steps_takes_the_place_of_the_boxs() -> None:
    steps = tuple(map(made, range(8)))
    twice = replace(night(*steps), tflops=2 * named_box("epyc-2").tflops)
    found = fit([twice])
    assert found.efficiency.gradient == pytest.approx(TRUE.gradient / 2)
    assert found.efficiency.engine == pytest.approx(TRUE.engine / 2)


def test_what_is_guessed_is_not_fitted() -> None:
    steps = [replace(made(n, 3.0), work=replace(made(n).work, is_exact=False)) for n in range(20)]
    guessed = replace(night(*steps), name="copy")
    found = fit([night(*map(made, range(8))), guessed])
    assert found.efficiency.gradient == pytest.approx(TRUE.gradient)
    assert tried_on(guessed, found)["rollout"].bias == pytest.approx(1 / 3 - 1)


@pytest.mark.parametrize("part", ["rollout", "reference", "gradient", "canary", "fixed"])
def test_a_part_that_was_never_measured_is_named(part: str) -> None:
    nothing: dict[str, Any] = {part: None}
    steps = [replace(made(n), **nothing) for n in range(3)]
    with pytest.raises(BadInput, match=rf"no step in it has {part}; `python -m"):
        fit([night(*steps)])


def test_shares_of_what_was_measured_are_shares() -> None:
    found = fit(measured_runs()).efficiency
    for share in (found.engine, found.reference, found.gradient):
        assert 0.1 < share < 1
    assert found.gradient < found.reference


def test_the_fitted_box_has_the_fitted_time_of_an_iteration() -> None:
    """Else a prediction for the machine that was measured would not be the fit's. After new
    measurements: write it into the box's file, then the page with its command."""
    fitted = fit(measured_runs()).iteration_ms
    assert named_box("epyc-2").iteration_ms == pytest.approx(fitted, abs=0.1)


def test_a_measured_step_that_is_left_out_is_met_within_an_eighth() -> None:
    errors = left_out(measured_runs(bench=Path("none.json")))
    assert errors["step"].median < 0.06
    assert errors["step"].worst < 0.15
    assert errors["rollout"].median < 0.08
