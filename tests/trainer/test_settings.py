"""Settings are refused by name when they cannot mean anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from fieldkit.errors import BadInput
from scripts.run.config import changed_keys, config_of, flat
from trainer.settings import TrainerSettings, read_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", float("nan")),
        ("temperature", 0.0),
        ("kl_coef", -0.1),
        ("tis_cap", float("inf")),
        ("tokens_per_microbatch", 0),
        ("dtype", "int8"),
        ("gradient_checkpointing", 1),
        ("lr", True),
        ("optimizer", "adam"),
        ("serving_dtype", "bf16"),
    ],
)
def test_an_impossible_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=name):
        TrainerSettings(**{name: value})


@pytest.mark.parametrize(
    ("kl_in", "estimator", "instead"),
    [("loss", "k1", "k2 or k3"), ("reward", "k2", "k1"), ("reward", "k3", "k1")],
)
def test_an_estimator_whose_gradient_is_not_the_kls_is_refused_where_a_kl_is_wanted(
    kl_in: Literal["loss", "reward"], estimator: Literal["k1", "k2", "k3"], instead: str
) -> None:
    with pytest.raises(BadInput, match=rf"set trainer\.kl_estimator to {instead}$"):
        TrainerSettings(kl_in=kl_in, kl_estimator=estimator).check_new(0)
    TrainerSettings(kl_in=kl_in, kl_estimator=estimator, kl_coef=0.0).check_new(0)


def test_a_band_of_ratios_that_are_all_1_is_refused() -> None:
    with pytest.raises(BadInput, match=r"trainer\.clip_high: with trainer\.passes = 1"):
        TrainerSettings(objective="dapo", clip_high=0.1).check_new(0)
    TrainerSettings(objective="dapo", clip_high=0.1, passes=2).check_new(0)
    TrainerSettings(objective="masked", clip_high=0.1).check_new(0)


def test_a_cap_below_the_weight_of_equal_probabilities_is_refused() -> None:
    with pytest.raises(BadInput, match=r"trainer\.tis_cap: 0\.5 scales every token's weight"):
        TrainerSettings(tis_cap=0.5).check_new(0)


@pytest.mark.parametrize(
    ("devices", "given"),
    [
        (8, {"launch": "single"}),
        (8, {"processes": 1}),
        (1, {}),
        (0, {}),
    ],
)
def test_a_base_that_one_process_would_keep_whole_is_not_said_to_be_sharded(
    devices: int, given: dict[str, Any]
) -> None:
    settings = TrainerSettings(shard_base=True, **given)
    with pytest.raises(BadInput, match=r"trainer\.shard_base: one process .* trainer\.processes"):
        settings.check_new(devices)
    TrainerSettings(**given).check_new(devices)


@pytest.mark.parametrize(("devices", "given"), [(8, {}), (0, {"processes": 2})])
def test_a_base_that_several_processes_share_may_be_sharded(
    devices: int, given: dict[str, Any]
) -> None:
    TrainerSettings(shard_base=True, **given).check_new(devices)


def see(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    """Have CUDA see these devices; None: all."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("gpus", "visible", "tokens"),
    [([], None, 1024), (["GB10"], None, 4096), (["GB10"], "", 1024), ([], "0", 1024)],
)
def test_the_default_micro_batch_follows_the_device_that_cuda_finds(
    gpus: list[str], visible: str | None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldkit.gate.nvidia.gpu_count", lambda: len(gpus))
    see(monkeypatch, visible)
    assert TrainerSettings().microbatch_tokens == tokens
    assert TrainerSettings(tokens_per_microbatch=7).microbatch_tokens == 7


@pytest.mark.parametrize(
    ("gpus", "visible", "given", "processes"),
    [
        (0, None, {}, 1),
        (0, None, {"processes": 2}, 2),
        (1, None, {}, 1),
        (8, None, {}, 1),
        (8, None, {"launch": "torchrun"}, 8),
        (8, None, {"shard_base": True}, 8),
        (8, "2,5", {"launch": "torchrun"}, 2),
        (8, "2,-1,5", {"launch": "torchrun"}, 1),
        (8, "", {"launch": "torchrun"}, 1),
        (8, None, {"launch": "single", "shard_base": True}, 1),
        (8, None, {"processes": 4}, 4),
        (0, None, {"launch": "torchrun"}, 1),
    ],
)
def test_a_step_has_one_process_that_may_stay_unless_several_are_asked_for(
    gpus: int,
    visible: str | None,
    given: dict[str, Any],
    processes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fieldkit.gate.nvidia.gpu_count", lambda: gpus)
    see(monkeypatch, visible)
    settings = TrainerSettings(**given)
    assert settings.world_size == processes
    assert settings.launched == (processes > 1 or given.get("launch") == "torchrun")


@pytest.mark.parametrize(("processes", "shards"), [(1, 1), (4, 4)])
def test_a_base_has_as_many_shards_as_processes(processes: int, shards: int) -> None:
    assert TrainerSettings(processes=processes, shard_base=True).shards == shards
    assert TrainerSettings(processes=processes).shards == 1


def test_a_single_process_that_is_to_be_several_is_refused() -> None:
    with pytest.raises(BadInput, match=r'trainer.processes: launch "single" .* processes is 2'):
        TrainerSettings(launch="single", processes=2)


def test_a_file_gives_values_and_a_flag_wins(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"lr": 1e-3, "kl_coef": 1}))
    settings = read_settings(file, lr=5e-5, temperature=None)
    assert (settings.lr, settings.kl_coef, settings.temperature) == (5e-5, 1.0, 1.0)


RETIRED = {"max_segment_tokens": 32768, "allow_off_policy": False}
"""Keys of older versions. The memory says what fits, and a run knows who sampled its bundles."""


def test_the_settings_of_an_older_version_are_read_without_the_keys_that_do_nothing_more(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"lr": 1e-3, **RETIRED}))
    assert read_settings(file) == TrainerSettings(lr=1e-3)
    of_run = config_of({"trainer": {"lr": 1e-3, **RETIRED}}, "run.toml")
    assert of_run.trainer == TrainerSettings(lr=1e-3)
    assert not {f"trainer.{key}" for key in RETIRED} & flat(of_run.plain()).keys()
    manifest = of_run.plain()
    manifest["trainer"] |= RETIRED
    assert changed_keys(manifest, of_run.plain()) == []


def test_the_servers_dtype_is_the_engines_and_another_is_an_error_in_the_file() -> None:
    found = config_of({"engine": {"dtype": "float16"}}, "run.toml")
    assert found.trainer.serving_dtype == "float16"
    with pytest.raises(BadInput) as refused:
        config_of(
            {"engine": {"dtype": "bfloat16"}, "trainer": {"serving_dtype": "float32"}}, "run.toml"
        )
    assert str(refused.value) == (
        "run.toml: trainer.serving_dtype is 'float32' but engine.dtype is 'bfloat16'; they are one"
        " value: leave out trainer.serving_dtype"
    )


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"kl_coeff": 0.1}))
    with pytest.raises(BadInput, match=r"settings\.json: .*'kl_coeff'; did you mean 'kl_coef'\?"):
        read_settings(file)


def test_a_value_of_another_type_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"lr": "fast"}))
    with pytest.raises(BadInput, match="lr: expected a finite number above 0, found 'fast'"):
        read_settings(file)
