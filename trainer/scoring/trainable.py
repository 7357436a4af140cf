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

LOGIT_TRANSFORMS = {
    "final_logit_softcapping": None,
    "logits_soft_cap": None,
    "output_logit_soft_cap": None,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "lm_head_multiplier": 1.0,
    "logits_mup_width_multiplier": 1.0,
}
"""Settings with which logits are more than W·h. Value: what leaves them plain."""

_NAMES = {"bf16": "bfloat16", "fp32": "float32"}
"""Training dtypes, with the server's names for them."""


def check_trainable(model_dir: Path, dtype: str, served: str, *, sharded: bool = False) -> None:
    """Raise `BadInput` where no step could be trained.

    dtype: the trainer's setting. served: what the server computes in ("bfloat16"). sharded: several
    processes keep a part of the base each.
    """
    config = read_json(model_dir / "config.json")
    text = {**config, **(config.get("text_config") or {})}  # a model of several modalities
    check_logits(str(model_dir), text.get)
    check_dtype(dtype, served, sharded=sharded)


def check_logits(name: str, setting: Callable[[str], Any]) -> None:
    """Raise `BadInput` naming the key where a model's logits are not plain. setting: by its key."""
    for key, neutral in LOGIT_TRANSFORMS.items():
        if setting(key) not in (neutral, None):
            raise BadInput(
                f"{name}: {key} in its config.json changes the logits, and the trainer computes "
                "plain ones; not supported. Name another model"
            )


def check_dtype(dtype: str, served: str, *, sharded: bool = False) -> None:
    """Raise `BadInput` for bf16 under a server of another dtype: the canary could not be computed
    from weights that are rounded already. A sharded base has to have the server's dtype, and that
    must not be float16: the gradient of a token, whose loss is divided by the number of all tokens,
    keeps a few bits in it or none."""
    if sharded and served == "float16":
        raise BadInput(
            "the server computes in float16, and in that dtype, which a sharded base has to have,"
            ' gradients vanish; set engine.dtype to "bfloat16", or trainer.shard_base to false'
        )
    if dtype == "bf16" and served != _NAMES[dtype]:
        raise BadInput(
            f"the server computes in {served} and the trainer is set to {dtype}; set the trainer's "
            "dtype to fp32 or auto"
        )
    if sharded and _NAMES.get(dtype, served) != served:
        raise BadInput(
            f"trainer.dtype is {dtype} and the server computes in {served}: the parts of a sharded"
            " base are not converted, so the canary could not be computed; set trainer.dtype to"
            ' "auto", or trainer.shard_base to false'
        )
