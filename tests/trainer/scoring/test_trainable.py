"""What cannot be trained is told from the model's settings, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from trainer.scoring.trainable import check_trainable


def model(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder


@pytest.mark.parametrize(
    "config",
    [
        {"logits_scaling": 8.0},
        {"final_logit_softcapping": 30.0},
        {"logits_soft_cap": 30.0},
        {"lm_head_multiplier": 0.02},
        {"text_config": {"logit_scale": 0.0625}},
    ],
)
def test_a_model_whose_logits_are_not_plain_is_refused_by_the_key(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    ((key, _),) = config.get("text_config", config).items()
    with pytest.raises(BadInput, match=rf"{tmp_path}: {key} in its config\.json"):
        check_trainable(model(tmp_path, **config), "auto", "bfloat16")


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
        {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
    ],
)
def test_frequencies_that_follow_the_length_are_refused_where_an_episode_may_be_so_long(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config = {"max_position_embeddings": 4096} | config
    folder = model(tmp_path, **config)
    check_trainable(folder, "auto", "bfloat16", context=4096)
    with pytest.raises(BadInput, match=r"beyond 4096 tokens, .* set engine.max_model_len to 4096"):
        check_trainable(folder, "auto", "bfloat16", context=4097)


def test_frequencies_that_are_the_same_at_every_length_are_trained(tmp_path: Path) -> None:
    scaled = model(tmp_path, rope_scaling={"type": "yarn"}, max_position_embeddings=4096)
    check_trainable(scaled, "auto", "bfloat16", context=10**5)


def test_a_setting_that_changes_nothing_is_none(tmp_path: Path) -> None:
    plain = model(tmp_path, logits_scaling=1.0, final_logit_softcapping=None)
    check_trainable(plain, "auto", "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "served", "sound"),
    [
        ("auto", "float32", True),
        ("fp32", "float16", True),
        ("bf16", "bfloat16", True),
        ("bf16", "float32", False),
    ],
)
def test_weights_are_rounded_in_training_only_where_the_server_rounds_them_too(
    tmp_path: Path, dtype: str, served: str, sound: bool
) -> None:
    folder = model(tmp_path)
    if sound:
        check_trainable(folder, dtype, served)
        return
    with pytest.raises(BadInput, match=f"computes in {served}.*set to {dtype}"):
        check_trainable(folder, dtype, served)


@pytest.mark.parametrize(
    ("dtype", "served", "says"),
    [
        ("auto", "bfloat16", None),
        ("bf16", "bfloat16", None),
        ("fp32", "float32", None),
        ("fp32", "bfloat16", r'set trainer\.dtype to "auto"'),
        ("auto", "float16", r'set engine\.dtype to "bfloat16"'),
        ("fp32", "float16", r'set engine\.dtype to "bfloat16"'),
    ],
)
def test_a_sharded_base_has_the_servers_dtype_and_is_told_so_before_a_step(
    tmp_path: Path, dtype: str, served: str, says: str | None
) -> None:
    folder = model(tmp_path)
    check_trainable(folder, dtype, served)
    if says is None:
        check_trainable(folder, dtype, served, sharded=True)
        return
    with pytest.raises(BadInput, match=rf"{says}, or trainer\.shard_base to false"):
        check_trainable(folder, dtype, served, sharded=True)
