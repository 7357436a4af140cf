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

FOLLOW_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary frequencies that follow the length of what is scored."""

_NAMES = {"bf16": "bfloat16", "fp32": "float32"}
"""Training dtypes, with the server's names for them."""


def check_trainable(
    model_dir: Path, dtype: str, served: str, *, context: int = 0, sharded: bool = False
) -> None:
    """Raise `BadInput` where no step could be trained.

    dtype: the trainer's setting. served: what the server computes in ("bfloat16"). context: tokens
    that an episode may have. sharded: several processes keep a part of the base each.
    """
    config = read_json(model_dir / "config.json")
    text = {**config, **(config.get("text_config") or {})}  # a model of several modalities
    check_logits(str(model_dir), text.get)
    _check_positions(model_dir, text, context)
    check_dtype(dtype, served, sharded=sharded)


def _check_positions(model_dir: Path, config: dict[str, Any], context: int) -> None:
    """Raise `BadInput` where rotary frequencies would follow the longest episode that is scored
    beside another one: transformers takes them from the whole micro-batch, a server does not."""
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer = [part for part in said.values() if isinstance(part, dict)]  # one for each kind
    for rope in by_layer or [said]:
        kind = rope.get("rope_type") or rope.get("type")
        length = (
            rope.get("original_max_position_embeddings")
            or config.get("original_max_position_embeddings")
            or config.get("max_position_embeddings")
        )
        if kind in FOLLOW_LENGTH and length and context > length:
            raise BadInput(
                f"{model_dir}: its rotary frequencies ({kind}) change beyond {length} tokens, and "
                f"engine.max_model_len is {context}: what is scored would depend on what is scored "
                f"beside it; set engine.max_model_len to {length}, or name another model"
            )


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
