"""The bench of a GPU: its work has the documents' size, and its page compares like with like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
import torch

from fieldkit.codec import read_bundle
from fieldkit.errors import BadInput
from fieldkit.training.adapter import check_adapter
from tests.bench import child, gpu, page, trainers
from tests.bench.gpu_work import ADAPTER, LINEAR, MODEL, QWEN_7B, SMALL, write_bundle
from tests.bench.measurements import Measurements
from tests.bench.plain_trainer import timed
from tests.bench.shapes import layer_shapes, weights
from tests.bench.test_bench import ABOUT, passed
from tests.bench.trainer_run import ours, profile
from tests.bench.work import Work
from trainer.batch import collect
from trainer.settings import TrainerSettings


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small model, its adapter and its bundle."""
    folder = tmp_path_factory.mktemp("bench-gpu")
    gpu.work_of(folder, SMALL)
    return folder


@pytest.fixture
def work(kept: Path) -> Work:
    return gpu.work_of(kept, SMALL)


def test_the_model_has_the_documents_number_of_parameters() -> None:
    """7,655,986,688 with the LoRA's 40,370,176, as the third document's trainer prints."""
    shape = QWEN_7B.config
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    keys = shape["num_key_value_heads"] * hidden // shape["num_attention_heads"]
    linear = [(hidden, hidden), (keys, hidden), (keys, hidden), (hidden, hidden)]
    linear += [(inner, hidden), (inner, hidden), (hidden, inner)]
    assert len(linear) == len(LINEAR)
    lora = shape["num_hidden_layers"] * QWEN_7B.rank * sum(a + b for a, b in linear)
    assert lora == 40_370_176
    biases, norms = hidden + 2 * keys, 2 * hidden
    layer = sum(map(math.prod, linear)) + biases + norms
    tables = 2 * shape["vocab_size"] * hidden
    whole = shape["num_hidden_layers"] * layer + tables + hidden
    assert whole + lora == 7_655_986_688


def test_the_folder_that_is_written_has_the_shape_that_was_asked_for(kept: Path) -> None:
    model = kept / gpu.POLICY / MODEL
    assert (128, 64) in layer_shapes(model)
    assert weights(model)[1] == 512 * 64
    assert set(check_adapter(kept / gpu.POLICY / ADAPTER, model).target_modules) == set(LINEAR)


def test_a_whole_step_has_the_documents_attempts_and_every_turn(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle.jsonl", QWEN_7B, "sha", 0.8)
    groups = read_bundle(tmp_path / "bundle.jsonl")
    attempts = [t for g in groups for t in g.trajectories]
    assert (len(groups), len(attempts)) == (8, 32)
    assert {len(t.turns) for t in attempts} == {12}
    inputs = [s.n_inputs for s in collect(groups, TrainerSettings()).segments]
    assert len(inputs) == 32  # one segment each: every prompt goes on from the one before
    assert 2_500 < fmean(inputs) < 3_700
    assert max(inputs) < 8_192


def test_the_two_trainers_have_one_gradient_on_the_benchs_own_work(kept: Path, work: Work) -> None:
    settings = work.trainer_with(dtype="fp32", serving_dtype="float32", kl_coef=0.3)
    batch = collect(read_bundle(gpu.bundle_of(kept, work.adapter, work.config)), settings)
    both = [
        run(work.model, work.adapter.path, batch, settings, torch.float32) for run in (ours, timed)
    ]
    assert both[0]["gradient_norm"] == pytest.approx(both[1]["gradient_norm"], rel=1e-4)
    assert both[0]["gradient_norm"] > 0


def test_a_model_that_is_there_is_not_made_again(kept: Path, work: Work) -> None:
    file = work.model / "model.safetensors"
    before = file.stat().st_mtime_ns
    assert gpu.work_of(kept, SMALL).adapter.sha == work.adapter.sha
    assert file.stat().st_mtime_ns == before


def test_what_would_not_fit_is_left_out_and_computed_again_where_that_does(
    work: Work, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs(_: Work, *, tokens_per_microbatch: int, gradient_checkpointing: bool) -> int:
        return tokens_per_microbatch * (1 if gradient_checkpointing else 2)

    monkeypatch.setattr(gpu, "_forecast", needs)  # of a model with more than two layers
    monkeypatch.setattr(gpu, "_room", lambda: 4096)
    monkeypatch.setattr(trainers, "passes", lambda *a, **k: passed(1.0, 4e9))
    taken = Measurements(tmp_path / "m.jsonl", ABOUT)
    for checkpointing in (False, True):
        gpu._take_size(
            work, taken, gpu.bundle_of(kept, work.adapter, work.config), 4096, checkpointing
        )
    assert taken.contestants(trainers.SIZES) == ["4,096 tokens, computed again"]


def test_a_profile_names_the_operations_that_take_longest(
    work: Work, kept: Path, tmp_path: Path
) -> None:
    batch = collect(read_bundle(gpu.bundle_of(kept, work.adapter, work.config)), work.trainer)
    found = profile(work.model, work.adapter.path, batch, work.trainer, torch.float32)
    took = [seconds for _, seconds, _ in found["operations"]]
    assert took == sorted(took, reverse=True)
    assert "aten::mm" in [name for name, _, _ in found["operations"]]
    assert 0 < sum(took) <= found["busy"]
    taken = Measurements(tmp_path / "m.jsonl", ABOUT)
    taken.take(gpu.PROFILE, trainers.OURS, 0, lambda: found)
    assert "| `aten::mm` |" in gpu._profile(taken).markdown()


@pytest.mark.parametrize("name", [trainers.OURS, trainers.PLAIN])
def test_a_whole_step_runs_from_the_bundle_to_the_saved_adapter(
    work: Work, kept: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    run = child.run

    def look(module: str, *words: str, env: Mapping[str, str]) -> str:
        said = run(module, *words, env=env)
        out = Path(next(w for flag, w in pairwise(words) if flag in ("--out", "--out-dir")))
        saved.extend(p.name for p in out.rglob("adapter_model.safetensors"))
        return said

    monkeypatch.setattr(child, "run", look)
    assert gpu._step(work, gpu.bundle_of(kept, work.adapter, work.config), name)["seconds"] > 0
    assert saved == ["adapter_model.safetensors"]


def test_the_page_shows_the_forecast_beside_the_peak(work: Work, tmp_path: Path) -> None:
    taken = Measurements(tmp_path / "m.jsonl", {**ABOUT, "machine": "a GPU with 16 cores"})
    of = {trainers.OURS: passed(2.0, 2 * 2**30), trainers.PLAIN: passed(6.0, 8 * 2**30)}
    for name, values in {**of, trainers.LIMIT: {"flops": 1e9}}.items():
        taken.take(trainers.PART, name, 0, lambda: values)  # noqa: B023
    sized = {**passed(2.0, 2 * 2**30), "forecast_bytes": 3 * 2**30}
    taken.take(trainers.SIZES, "2,048 tokens", 0, lambda: sized)
    for name in (trainers.OURS, trainers.PLAIN):
        taken.take(gpu.STEP, name, 0, lambda: {"seconds": 30.0})
    text = gpu.gpu_page(work, taken, replace(SMALL, config=QWEN_7B.config))
    assert "on a GPU with 16 cores" in text
    assert "| passes against the plain rebuild's | 3.00 |" in text
    assert "| peak memory against the plain rebuild's | 0.25 |" in text
    assert "| 2,048 tokens | 500 | 250 | 2 | 3 |" in text
    assert f"| {trainers.OURS} | 30 |" in text
    assert page.record(work, taken)["ratios"]["trainer_vs_naive"] == 3


def test_without_a_device_the_error_names_both_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "cuda_devices", lambda: 0)
    with pytest.raises(
        BadInput, match=r"`make bench` measures a CPU.*GRPO_BUILD=cuda make bench-gpu"
    ):
        gpu.main(rounds=1, short=False, kept=tmp_path, out=tmp_path)
    assert not list(tmp_path.iterdir())
