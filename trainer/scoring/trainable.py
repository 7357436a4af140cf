"""The models that this trainer cannot train, recognised by config.json before anything is loaded.

A run checks in the evening, before the first rollout; the trainer checks again with the model that
it has loaded. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json

LOGIT_TRANSFORMS = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""Settings with which logits are more than W·h. Value: what leaves them plain."""

NARROW = {"bf16": "bfloat16"}
"""Training dtypes in which the weights are rounded, with the server's name for them."""


def check_trainable(model_dir: Path, dtype: str, served: str) -> None:
    """Raise `BadInput` where no step could be trained.

    dtype: the trainer's setting. served: what the server computes in ("bfloat16").
    """
    config = read_json(model_dir / "config.json")
    text = {**config, **(config.get("text_config") or {})}  # a model of several modalities
    check_logits(str(model_dir), text.get)
    check_dtype(dtype, served)


def check_logits(name: str, setting: Callable[[str], Any]) -> None:
    """Raise `BadInput` naming the key where a model's logits are not plain. setting: by its key."""
    for key, neutral in LOGIT_TRANSFORMS.items():
        if setting(key) not in (neutral, None):
            raise BadInput(
                f"{name}: {key} in its config.json changes the logits, and the trainer computes "
                "plain ones; not supported. Name another model"
            )


def check_dtype(dtype: str, served: str) -> None:
    """Raise `BadInput` for bf16 under a server of another dtype: the canary could not be computed
    from weights that are rounded already."""
    if NARROW.get(dtype, served) != served:
        raise BadInput(
            f"the server computes in {served} and the trainer is set to {dtype}; set the trainer's "
            "dtype to fp32 or auto"
        )
