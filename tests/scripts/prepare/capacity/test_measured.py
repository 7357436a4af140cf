"""Measured steps: those that are kept, and those of a bench."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, write_json
from scripts.prepare.capacity.measured import (
    FIXED,
    TABLE,
    MeasuredStep,
    bench_runs,
    default_night,
    main,
    measured_run,
    measured_runs,
    seats_of,
)
from scripts.run.folder import open_run
from scripts.run.reader import RunReader
from tests.scripts.prepare.capacity.round_numbers import work

COMMITTED = ("first-night", "sql-0", "sql-1", "sql-2")
NO_BENCH = Path("none.json")


def bench(**changes: Any) -> dict[str, Any]:
    """docs/performance.json, as `tests.bench.page.record` makes it."""
    rollout = {
        "part": "rollout", "round": 0, "episodes": 32, "group_size": 4, "turns": 376,
        "sampled": 4000, "read": 8000, "longest": 200, "load": 0.1,
    }  # fmt: skip
    passes = {"part": "trainer", "contestant": "ours", "round": 0, "inputs": 11000, "scored": 3500}
    found = {
        "machine": "2 cores of an EPYC",
        "smaller": [],
        "measurements": [
            {**rollout, "contestant": "1 in flight", "seconds": 160.0},
            {**rollout, "contestant": "all in flight", "seconds": 32.0},
            {**rollout, "contestant": "engine alone", "seconds": 30.0},
            {**passes, "reference_seconds": 11.0, "gradient_seconds": 27.0},
            {"part": "trainer", "contestant": "matrix products", "round": 0, "flops": 310e9},
            {"part": "trainer", "contestant": "matrix products", "round": 1, "flops": 290e9},
            {"part": "step", "contestant": "this loop", "round": 0, "seconds": 80.0},
        ],
    }
    return {**found, **changes}


@pytest.mark.parametrize(
    ("concurrency", "most", "seats"), [(0, 64, 64), (0, 256, 256), (16, 256, 16), (512, 256, 256)]
)
def test_a_run_has_as_many_seats_as_its_engine_unless_it_asks_for_fewer(
    concurrency: int, most: int, seats: int
) -> None:
    config = {"rollout": {"concurrency": concurrency}, "engine": {"max_num_seqs": most}}
    assert seats_of(config) == seats


@pytest.mark.parametrize("name", COMMITTED)
def test_the_kept_steps_of_a_committed_run_are_its_own(name: str) -> None:
    kept = {run.name: run for run in measured_runs(bench=NO_BENCH)}[name]
    assert kept == measured_run(RunReader(open_run(name)), "epyc-2")


def test_one_night_was_measured_with_its_bundles() -> None:
    night = default_night(measured_runs(bench=NO_BENCH))
    assert night.name == "default-night"
    assert len(night.steps) == 21
    assert all(step.work.longest <= 12 * 96 for step in night.steps)


def test_a_steps_seconds_are_those_of_its_parts() -> None:
    step = MeasuredStep(1, work(), 10.0, 2.0, 3.0, canary=0.5, fixed=1.5)
    assert step.seconds("rollout") == 10.0
    assert step.seconds("step") == 17.0
    assert replace(step, canary=None).seconds("step") is None


def test_a_step_without_a_reference_pass_is_read_and_is_no_whole_one() -> None:
    """A KL that was small is computed at every few steps only."""
    (without,) = (
        s for s in measured_run(RunReader(open_run("long-3")), "epyc-2").steps if s.step == 2
    )
    assert without.reference is None
    assert without.gradient
    assert without.seconds("step") is None


def test_the_parts_are_a_steps_whole_wall() -> None:
    """Of the runs in which nothing else was done: what no part claims would be missing."""
    reader = RunReader(open_run("first-night"))
    for n in (1, 20):
        seconds = reader.step(n).seconds
        known = {*FIXED, "rollout", "reference", "gradient", "canary", "trainer_start"}
        claimed = sum(seconds.get(name, 0.0) for name in (*known, "trainer_load"))
        assert claimed == pytest.approx(seconds["wall"], rel=0.01)


def test_a_benchs_rollouts_and_passes_are_read() -> None:
    runs = {run.seats: run for run in bench_runs(bench(), "performance.json")}
    assert set(runs) == {1, 64}
    (alone,) = runs[1].steps
    assert (alone.rollout, alone.work.sampled, alone.work.longest) == (160.0, 4000, 200)
    played, passes = runs[64].steps
    assert (played.rollout, played.gradient) == (32.0, None)
    assert (passes.reference, passes.gradient, passes.work.inputs) == (11.0, 27.0, 11000)
    assert runs[64].tflops == pytest.approx(0.3)
    assert all(run.is_exact for run in runs.values())


def test_a_short_bench_another_machines_and_one_without_longest_attempts_say_nothing() -> None:
    assert bench_runs(bench(smaller=["rollout.max_turns=2"]), "performance.json") == []
    assert bench_runs(bench(machine="2 cores of a Xeon"), "performance.json") == []
    faster = [
        {**row, "flops": 3 * row["flops"]} if "flops" in row else row
        for row in bench()["measurements"]
    ]
    assert bench_runs(bench(measurements=faster), "performance.json") == []
    rows = [{k: v for k, v in row.items() if k != "longest"} for row in bench()["measurements"]]
    (passes,) = bench_runs(bench(measurements=rows), "performance.json")
    assert [step.rollout for step in passes.steps] == [None]


def test_runs_are_written_in_the_place_of_those_of_their_name(tmp_path: Path) -> None:
    table = tmp_path / "measured.json"
    write_json(table, {"schema": 1, "runs": [{"name": "sql-0", "box": "old"}, {"name": "other"}]})
    main(["sql-0", "sql-1@h100"], table)
    found = [(run["name"], run.get("box")) for run in read_json(table)["runs"]]
    assert found == [("sql-0", "epyc-2"), ("other", None), ("sql-1", "h100")]
    with pytest.raises(BadInput, match="h10: unknown; did you mean 'h100'"):
        main(["sql-2@h10"], table)
    assert len(read_json(table)["runs"]) == 3


def test_a_run_on_another_box_is_not_fitted() -> None:
    (gpu,) = (run for run in measured_runs() if run.box == "h100")
    assert gpu.is_exact
    assert not gpu.is_fitted


def test_a_bench_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "performance.json"
    write_json(file, bench())
    runs = measured_runs(bench=file)
    assert runs[0].name == "bench, 1 in flight"
    assert default_night(runs).name == "default-night"


@pytest.mark.parametrize(
    "broken", [{}, {**bench(), "measurements": [{}]}, {**bench(), "measurements": 3}]
)
def test_a_bench_that_is_none_is_an_error_with_the_command(broken: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"^performance.json: not as `make bench` writes it"):
        bench_runs(broken, "performance.json")


@pytest.mark.parametrize("at", ["run", "step", "work"])
def test_a_table_with_a_key_too_many_is_an_error(tmp_path: Path, at: str) -> None:
    run = read_json(TABLE)["runs"][0]
    step = run["steps"][0]
    {"run": run, "step": step, "work": step["work"]}[at]["unheard"] = 1
    table = tmp_path / "measured.json"
    write_json(table, {"schema": 1, "runs": [run]})
    with pytest.raises(BadInput, match=r"measured.json: .*unheard: "):
        measured_runs(table, NO_BENCH)
