"""A whole step: files in, files out, on a real tiny model."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fieldkit.errors import BadInput, Shortage
from fieldkit.files.atomic import sha256_file
from fieldkit.training.adapter import adapter_sha, check_adapter
from tests.trainer.conftest import make_adapter, make_group, write_bundle
from trainer.checkpoint import read_result, state_sha
from trainer.inputs import StepInputs
from trainer.progress import JsonLines, Lines
from trainer.scoring.micro_batch import MicroBatch
from trainer.scoring.policy import Policy
from trainer.settings import TrainerSettings
from trainer.step import train

SETTINGS = TrainerSettings(dtype="fp32", lr=1e-2, kl_coef=0.1)


@pytest.fixture
def inputs(
    bundle: Path, adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> StepInputs:
    return StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / "step-001")


def step(inputs: StepInputs, settings: TrainerSettings = SETTINGS) -> dict[str, Any]:
    return train(inputs, settings, Lines(StringIO()))


def follow(first: StepInputs, tmp_path: Path) -> StepInputs:
    """Inputs of the step after `first`: its adapter and state, and a bundle that it sampled."""
    adapter = first.out_dir / "adapter"
    rng = random.Random(77)
    groups = [make_group(rng, adapter_sha(adapter), f"n{i}", (0.0, 1.0)) for i in range(2)]
    return dataclasses.replace(
        first,
        bundle=write_bundle(tmp_path / "second.jsonl", groups),
        adapter=adapter,
        state=first.out_dir / "trainer_state",
        out_dir=tmp_path / "step-002",
    )


def test_a_step_leaves_a_sound_adapter_its_state_and_its_figures(inputs: StepInputs) -> None:
    result = step(inputs)
    out = inputs.out_dir
    assert sorted(p.name for p in out.iterdir()) == ["adapter", "train.json", "trainer_state"]
    info = check_adapter(out / "adapter", inputs.model_dir)
    assert result["outcome"] == "TRAINED"
    assert result["adapter_sha"] == info.sha != result["parent_sha"]
    assert result["parent_sha"] == adapter_sha(inputs.adapter)
    assert result["optimizer_sha"] == state_sha(out / "trainer_state")
    assert result["bundle_sha"] == sha256_file(inputs.bundle)
    assert result["groups"] == {"LEARNABLE": 2, "SATURATED": 1, "STUCK": 0}
    figures = result["train"]
    assert (figures["n_used"], figures["n_trajectories"]) == (4, 7)
    assert figures["snapshot_tensors"] == 8
    assert figures["grad_norm"] > 0
    assert figures["optimizer_steps"] == 1
    assert all(isinstance(value, int | float) for value in figures.values())
    assert json.loads((out / "train.json").read_text()) == result


def test_what_a_step_wrote_is_hashed_for_its_marker_and_not_read_again_for_its_answer(
    inputs: StepInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer's state of a large adapter takes seconds to hash."""
    hashed: list[Path] = []

    def sha(folder: Path) -> str:
        hashed.append(folder)
        return state_sha(folder)

    monkeypatch.setattr("trainer.checkpoint.state_sha", sha)
    result = step(inputs)
    assert [folder.name for folder in hashed] == ["trainer_state"]
    assert result == read_result(inputs.out_dir)


def test_the_seconds_of_the_phases_make_up_the_total(inputs: StepInputs) -> None:
    seconds = dict(step(inputs)["seconds"])
    total = seconds.pop("total")
    assert {"load", "reference", "gradient", "canary", "save"} <= seconds.keys()
    # The whole step takes a tenth of a second; another process may have the core for some of it.
    assert sum(seconds.values()) == pytest.approx(total, rel=0.05, abs=0.02)


def test_the_first_adamw_step_moves_every_weight_by_lr(inputs: StepInputs) -> None:
    figures = step(inputs)["train"]
    before = load_file(inputs.adapter / "adapter_model.safetensors")
    after = load_file(inputs.out_dir / "adapter" / "adapter_model.safetensors")
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert moved.abs().max().item() == pytest.approx(SETTINGS.lr, rel=1e-3)
    assert figures["delta_l2"] == pytest.approx(moved.norm().item(), rel=1e-5)


def test_good_rollouts_become_likelier_and_bad_ones_less(inputs: StepInputs) -> None:
    from fieldkit.codec import read_bundle
    from fieldkit.training.adapter import read_adapter
    from trainer.batch import collect
    from trainer.scoring.micro_batch import tensors
    from trainer.scoring.policy import load_policy

    settings = dataclasses.replace(SETTINGS, kl_coef=0.0, lr=1e-3)
    step(inputs, settings)
    batch = collect(read_bundle(inputs.bundle), settings)

    def objective(adapter: Path) -> float:
        policy = load_policy(
            inputs.model_dir, read_adapter(adapter), torch.float32, gradient_checkpointing=False
        )
        micro = tensors(batch.segments, policy.device, shared=policy.shares_rows)
        with torch.no_grad():
            logprobs, _ = policy.logprobs(micro, 1.0)
        return float((micro.advantages_n * logprobs).sum())

    assert objective(inputs.out_dir / "adapter") > objective(inputs.adapter)


def test_equal_inputs_give_equal_bytes(inputs: StepInputs, tmp_path: Path) -> None:
    again = dataclasses.replace(inputs, out_dir=tmp_path / "again")
    first, second = step(inputs), step(again)
    assert first["adapter_sha"] == second["adapter_sha"]
    assert first["optimizer_sha"] == second["optimizer_sha"]
    canaries = [o / "adapter" / "canary.json" for o in (inputs.out_dir, again.out_dir)]
    assert canaries[0].read_bytes() == canaries[1].read_bytes()


def test_the_optimizer_goes_on_from_step_to_step(inputs: StepInputs, tmp_path: Path) -> None:
    step(inputs)
    second = follow(inputs, tmp_path)
    result = step(second)
    assert result["train"]["optimizer_steps"] == 2
    assert result["parent_optimizer_sha"] == state_sha(inputs.out_dir / "trainer_state")
    fresh = dataclasses.replace(second, state=None, out_dir=tmp_path / "fresh")
    assert step(fresh)["adapter_sha"] != result["adapter_sha"]


def test_the_state_of_another_adapter_is_refused(inputs: StepInputs, tmp_path: Path) -> None:
    step(inputs)
    wrong = dataclasses.replace(
        inputs, state=inputs.out_dir / "trainer_state", out_dir=tmp_path / "wrong"
    )
    with pytest.raises(BadInput, match="the state of adapter"):
        step(wrong)
    assert not wrong.out_dir.exists()


def test_a_step_that_is_done_is_not_done_again(inputs: StepInputs) -> None:
    step(inputs)
    marker = inputs.out_dir / "train.json"
    before = (marker.stat().st_mtime_ns, marker.stat().st_ino)
    step(inputs)
    assert (marker.stat().st_mtime_ns, marker.stat().st_ino) == before


def test_a_step_that_an_older_version_did_is_not_done_again(inputs: StepInputs) -> None:
    """Its settings held a seed, from which nothing was drawn, and a longest segment, and knew one
    objective."""
    step(inputs)
    marker = inputs.out_dir / "train.json"
    result = json.loads(marker.read_text())
    result["settings"] |= {"seed": 0, "max_segment_tokens": 16384, "allow_off_policy": False}
    for key in ("objective", "normalisation", "clip_low", "clip_high", "passes", "kl_in"):
        del result["settings"][key]
    marker.write_text(json.dumps(result))
    assert step(inputs) == result


def test_two_passes_are_two_optimizer_steps_and_go_on_from_there(
    inputs: StepInputs, tmp_path: Path
) -> None:
    settings = dataclasses.replace(SETTINGS, objective="grpo", passes=2)
    result = step(inputs, settings)
    figures = result["train"]
    assert figures["optimizer_steps"] == 2
    assert 0 < figures["ratio_clipped_share"] < 1
    scored = figures["tokens_per_second"] * result["seconds"]["gradient"]
    assert scored == pytest.approx(2 * figures["n_input_tokens"])
    second = step(follow(inputs, tmp_path), settings)
    assert second["train"]["optimizer_steps"] == 4


def test_another_step_does_not_overwrite_a_done_one(inputs: StepInputs) -> None:
    done = step(inputs)
    with pytest.raises(BadInput, match="holds the result of another step: its settings"):
        step(inputs, dataclasses.replace(SETTINGS, lr=1.0))
    assert read_result(inputs.out_dir) == done


def test_a_result_that_was_changed_afterwards_is_noticed(inputs: StepInputs) -> None:
    step(inputs)
    shutil.copyfile(
        inputs.adapter / "adapter_model.safetensors",
        inputs.out_dir / "adapter" / "adapter_model.safetensors",
    )
    with pytest.raises(BadInput, match="changed afterwards"):
        read_result(inputs.out_dir)


def test_a_kl_without_a_reference_is_refused_and_none_is_needed_at_zero(
    inputs: StepInputs,
) -> None:
    without = dataclasses.replace(inputs, reference=None)
    with pytest.raises(BadInput, match="--reference-adapter"):
        step(without)
    result = step(without, dataclasses.replace(SETTINGS, kl_coef=0.0))
    assert "kl" not in result["train"]
    assert "reference" not in result["seconds"]


def test_a_reference_of_another_rank_is_refused(inputs: StepInputs, tmp_path: Path) -> None:
    other = make_adapter(inputs.model_dir, tmp_path / "other", seed=3)
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 32}))
    with pytest.raises(BadInput, match="alpha is 32"):
        step(dataclasses.replace(inputs, reference=other))


def test_an_adapter_lacking_a_tensor_is_refused_before_anything_is_written(
    inputs: StepInputs, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    broken = tmp_path / "broken"
    shutil.copytree(inputs.adapter, broken)
    tensors = load_file(broken / "adapter_model.safetensors")
    gone = sorted(tensors)[3]
    del tensors[gone]
    save_file(tensors, broken / "adapter_model.safetensors")
    with pytest.raises(BadInput, match=gone.replace(".", r"\.")):
        step(dataclasses.replace(inputs, reference=broken))
    assert not inputs.out_dir.exists()


def test_progress_for_a_display_is_one_json_object_a_line(inputs: StepInputs) -> None:
    out = StringIO()
    train(inputs, SETTINGS, JsonLines(out))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    micro = [e for e in events if e["event"] == "microbatch"]
    assert [e["phase"] for e in micro] == ["reference", "policy"]
    assert all(e["done"] == e["of"] == 1 and e["tokens"] > 0 for e in micro)


def test_a_step_from_the_reference_itself_takes_no_pass_under_it(inputs: StepInputs) -> None:
    out = StringIO()
    first = dataclasses.replace(inputs, reference=inputs.adapter)
    result = train(first, SETTINGS, JsonLines(out))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {e["phase"] for e in events if e["event"] == "microbatch"} == {"policy"}
    assert "reference" not in result["seconds"]
    assert (result["train"]["kl"], result["train"]["kl_loss"]) == (0, 0)
    assert "whose KL to it is 0" in out.getvalue()


def test_the_log_has_the_same_lines_for_a_person(inputs: StepInputs) -> None:
    out, log = StringIO(), StringIO()
    train(inputs, SETTINGS, JsonLines(out, Lines(log)))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    told = [f"[trainer] {e['text']}" for e in events if e["event"] == "line"]
    lines = log.getvalue().splitlines()
    assert told == [line for line in lines if " tokens in " not in line]
    assert any(line.startswith("[trainer] policy 1/1: ") for line in lines)


def test_a_bf16_base_keeps_its_lora_in_float32(inputs: StepInputs) -> None:
    result = step(inputs, dataclasses.replace(SETTINGS, dtype="bf16"))
    assert result["train"]["training_bits"] == 16
    after = load_file(inputs.out_dir / "adapter" / "adapter_model.safetensors")
    assert {t.dtype for t in after.values()} == {torch.float32}


def on_a_gpu_for(tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of each micro-batch that is scored with a gradient; larger ones do not fit."""
    sizes, score = [], Policy.logprobs

    def scored(policy: Policy, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            sizes.append(batch.ids_BS.numel())
            if sizes[-1] > tokens:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return score(policy, batch, temperature)

    monkeypatch.setattr(Policy, "logprobs", scored)
    return sizes


def test_a_step_whose_micro_batches_do_not_fit_the_gpu_is_taken_in_smaller_ones(
    inputs: StepInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = step(inputs)["train"]
    lora = load_file(inputs.out_dir / "adapter" / "adapter_model.safetensors")
    sizes = on_a_gpu_for(10**9, monkeypatch)
    step(dataclasses.replace(inputs, out_dir=inputs.out_dir.with_name("seen")))
    largest, out = max(sizes), StringIO()
    on_a_gpu_for(largest - 1, monkeypatch)
    cut = dataclasses.replace(inputs, out_dir=inputs.out_dir.with_name("cut"))
    train(cut, SETTINGS, Lines(out))
    taken = json.loads((cut.out_dir / "train.json").read_text())["train"]
    assert "does not fit the GPU: once more with at most" in out.getvalue()
    assert taken["n_micro_batches"] > whole["n_micro_batches"]
    assert taken["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    for name, values in load_file(cut.out_dir / "adapter" / "adapter_model.safetensors").items():
        assert torch.allclose(values, lora[name], atol=1e-6)


def test_a_segment_that_does_not_fit_the_gpu_by_itself_is_a_shortage(
    inputs: StepInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu_for(1, monkeypatch)
    with pytest.raises(
        Shortage, match=r"a micro-batch of 1 segments, .* does not fit the GPU; set"
    ):
        step(inputs)


def test_a_gpu_that_is_full_after_the_last_micro_batch_is_a_shortage_and_no_bug(
    inputs: StepInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB"
        )

    monkeypatch.setattr("trainer.update.make_canary", fail)
    with pytest.raises(Shortage, match=r"allocate 2\.00 GiB\. `nvidia-smi` shows"):
        step(inputs)
    assert not (inputs.out_dir / "train.json").exists()
